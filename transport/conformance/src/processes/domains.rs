//! Items of section A that involve several processes.

use super::Stage;
use super::client::Puppet;
use crate::check::{EAGAIN, EBUSY, EINVAL, Verdict, equal};
use crate::connect::Terms;
use std::fs;
use trunkline_testkit::Folder;

/// Number of processes that open a domain at the same time.
const RACERS: usize = 16;

/// Creates a directory that contains a file. Returns the directory and the file's path.
fn file() -> Verdict<(Folder, String)> {
    let folder = Folder::new()?;
    folder.create("domain")?;
    let path = folder.join("domain").display().to_string();
    Ok((folder, path))
}

pub(super) fn a1(stage: &Stage<'_>) -> Verdict {
    let (folder, path) = file()?;
    let linked = folder.join("second").display().to_string();
    fs::hard_link(&path, &linked)?;
    folder.create("other")?;
    let other = folder.join("other").display().to_string();
    let (mut first, mut second) = stage.two()?;
    first.does(&format!("domain d {path} c"))?;
    second.is_refused(&format!("domain d {linked} cx"), EINVAL)?;
    second.does(&format!("domain d {linked} -"))?;
    second.does(&format!("domain e {other} cx"))?;
    let number = first.number("tgt t d")?;
    second.is_refused(&format!("open t e {number}"), EINVAL)?;
    equal("the number of the opened TGT", second.number(&format!("open t d {number}"))?, number)
}

pub(super) fn a3(stage: &Stage<'_>) -> Verdict {
    let (folder, path) = file()?;
    let (mut first, mut second) = stage.two()?;
    first.does(&format!("domain d {path} c"))?;
    fs::remove_file(&path)?;
    folder.create("domain")?;
    second.does(&format!("domain d {path} cx"))?;
    let number = first.number("tgt t d")?;
    second.is_refused(&format!("open t d {number}"), EINVAL)
}

pub(super) fn a4(stage: &Stage<'_>) -> Verdict {
    let mut racers: Vec<Puppet> =
        (0..RACERS).map(|_| stage.puppet("a racing process")).collect::<Verdict<_>>()?;
    for round in 0..4 {
        let (folder, path) = file()?;
        let start = folder.join("start").display().to_string();
        for racer in &mut racers {
            racer.tell(&format!("race d{round} {path} cx {start}"))?;
        }
        folder.create("start")?;
        let mut won = 0;
        for racer in &mut racers {
            match racer.answer()? {
                Ok(_) => won += 1,
                Err(errno) => equal("the errno of the others", errno, EINVAL)?,
            }
        }
        equal("number of processes that created the domain", won, 1)?;
    }
    Ok(())
}

pub(super) fn a5(stage: &Stage<'_>) -> Verdict {
    let (_folder, path) = file()?;
    let (mut first, mut second) = stage.two()?;
    for absent in ["-", "x"] {
        second.is_refused(&format!("domain d {path} {absent}"), EAGAIN)?;
    }
    first.does(&format!("domain d {path} cx"))?;
    for exclusive in ["cx", "x"] {
        second.is_refused(&format!("domain d {path} {exclusive}"), EINVAL)?;
    }
    for present in ["-", "c"] {
        second.does(&format!("domain d{present} {path} {present}"))?;
    }
    Ok(())
}

pub(super) fn a6(stage: &Stage<'_>) -> Verdict {
    let (mut first, mut second) = stage.two()?;
    for process in [&mut first, &mut second] {
        process.does("domain d - c")?;
    }
    let srq = first.number("srq s d")?;
    first.does("receive s 1 0 64")?;
    let foreign = first.number("tgt t d")?;
    second.is_refused(&format!("open f d {foreign}"), EINVAL)?;
    let number = second.number("tgt t d")?;
    let ini = stage.join(&mut second, "t", number, &Terms::default())?;
    stage.post(&ini, srq)?;
    stage.is_a_violation("a send to the private SRQ of another process")?;
    first.does("quiet s")?;
    Ok(())
}

pub(super) fn a10(stage: &Stage<'_>) -> Verdict {
    let (_folder, path) = file()?;
    let (mut first, mut second) = stage.two()?;
    first.does(&format!("domain d {path} c"))?;
    second.does(&format!("domain d {path} -"))?;
    let srq = first.number("srq s d")?;
    let number = second.number("tgt t d")?;
    let ini = stage.join(&mut second, "t", number, &Terms::default())?;
    stage.lab.near.fill(0, 8, 3)?;
    for wr_id in 0..4 {
        first.does(&format!("receive s {wr_id} 0 64"))?;
        stage.send(&ini, srq)?;
        equal("the QP of the receive", first.receives("s", wr_id)?, number)?;
        first.does("holds 0 8 3")?;
    }
    Ok(())
}

pub(super) fn a11(stage: &Stage<'_>) -> Verdict {
    let (_folder, path) = file()?;
    let (mut first, mut second) = stage.two()?;
    first.does(&format!("domain d {path} c"))?;
    second.does(&format!("domain d {path} -"))?;
    first.does("srq s d")?;
    let number = first.number("tgt t d")?;
    second.does(&format!("open t d {number}"))?;
    first.is_refused("close d", EBUSY)?;
    second.is_refused("close d", EBUSY)?;
    second.does("destroy t")?;
    second.does("close d")?;
    first.does("destroy t")?;
    first.is_refused("close d", EBUSY)?;
    first.does("destroy s")?;
    first.does("close d")?;
    Ok(())
}

pub(super) fn a12(stage: &Stage<'_>) -> Verdict {
    let (_folder, path) = file()?;
    let (mut first, mut second) = stage.two()?;
    first.does(&format!("domain d {path} c"))?;
    second.does(&format!("domain d {path} -"))?;
    first.does("close d")?;
    first.is_refused(&format!("domain d {path} cx"), EINVAL)?;
    second.does("close d")?;
    first.is_refused(&format!("domain d {path} -"), EAGAIN)?;
    first.does(&format!("domain d {path} cx"))?;
    Ok(())
}

pub(super) fn a14(stage: &Stage<'_>) -> Verdict {
    for killed in [true, false] {
        let (_folder, path) = file()?;
        let (mut first, mut second) = stage.two()?;
        first.does(&format!("domain d {path} c"))?;
        first.does("srq s d")?;
        first.does("receive s 1 0 64")?;
        let number = first.number("tgt t d")?;
        let _ini = stage.join(&mut first, "t", number, &Terms::default())?;
        second.is_refused(&format!("domain d {path} cx"), EINVAL)?;
        if killed {
            first.kill()?;
        } else {
            first.leave()?;
        }
        second.is_refused(&format!("domain d {path} -"), EAGAIN)?;
        second.does(&format!("domain d {path} cx"))?;
    }
    Ok(())
}
