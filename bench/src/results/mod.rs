//! Tables, files and pages with results, and the comparison of two files.

pub(crate) mod compare;
pub(crate) mod distribution;
pub(crate) mod html;
pub(crate) mod saved;
pub(crate) mod table;
pub(crate) mod whole_file;
