//! Settings of glibc's allocator, for [`crate::headroom`]. Other C libraries lack these settings.

#[cfg(target_env = "gnu")]
mod glibc {
    use nix::libc::{c_int, mallopt};

    pub(super) const M_MMAP_THRESHOLD: c_int = -3;
    pub(super) const M_ARENA_MAX: c_int = -8;

    pub(super) fn set(name: c_int, value: c_int) {
        // SAFETY: `mallopt` takes two numbers and locks the heap while it changes a setting. glibc reads the two settings
        // that this file changes as single words whenever a thread needs an arena or a large block, and the values set here
        // are valid at any time.
        let _is_set = unsafe { mallopt(name, value) };
    }
}

/// Makes all threads share one heap, unless `MALLOC_ARENA_MAX` is set, and returns large blocks to the system when they are
/// freed.
#[cfg(target_env = "gnu")]
pub(crate) fn use_least() {
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        glibc::set(glibc::M_ARENA_MAX, 1);
    }
    return_large_blocks();
}

/// Returns large blocks to the system when they are freed.
#[cfg(target_env = "gnu")]
pub(crate) fn return_large_blocks() {
    // Set glibc's default explicitly, because glibc otherwise raises the threshold to the size of freed blocks.
    glibc::set(glibc::M_MMAP_THRESHOLD, 128 << 10);
}

#[cfg(not(target_env = "gnu"))]
pub(crate) const fn use_least() {}

#[cfg(not(target_env = "gnu"))]
pub(crate) const fn return_large_blocks() {}
