//! Section A: XRC domains.

use crate::check::{EAGAIN, EBUSY, EINVAL, EOPNOTSUPP, Verdict, check, equal, refused};
use crate::connect::Terms;
use crate::traffic::{receive, request};
use crate::{Deviation, Lab};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::thread;
use trunkline_testkit::Folder;
use trunkline_verbs::{
    CompletionOpcode, DeviceCapabilities, QpInit, QpType, SendOperation, VerbsError, XrcDomain, XrcdFlags,
};

fn open(lab: &Lab, file: &File, flags: XrcdFlags) -> Result<Arc<dyn XrcDomain>, VerbsError> {
    lab.far.device.open_xrcd(Some(file.as_fd()), flags)
}

pub(super) fn a1(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    fs::hard_link(folder.join("domain"), folder.join("second"))?;
    let linked = File::open(folder.join("second"))?;
    let _held = open(lab, &file, XrcdFlags::CREATE)?;
    let both = XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE;
    refused("an exclusive open through a hard link", open(lab, &linked, both), EINVAL)?;
    refused("an exclusive open of a duplicate descriptor", open(lab, &file.try_clone()?, both), EINVAL)?;
    open(lab, &linked, XrcdFlags::empty())?;
    let other = folder.create("other")?;
    open(lab, &other, both)?;
    Ok(())
}

pub(super) fn a2(lab: &Lab) -> Verdict {
    if Arc::ptr_eq(&lab.near.device, &lab.far.device) {
        return Err(Deviation::Skipped("the bench has one device only".to_owned()));
    }
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    let both = XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE;
    let _here = lab.near.device.open_xrcd(Some(file.as_fd()), both)?;
    if lab.is_one_device {
        refused("a second exclusive open on one device", open(lab, &file, both), EINVAL)?;
        return open(lab, &file, XrcdFlags::empty()).map(drop).map_err(Deviation::from);
    }
    let _there = lab.far.device.open_xrcd(Some(file.as_fd()), both)?;
    refused("a second exclusive open on one device", open(lab, &file, both), EINVAL)
}

pub(super) fn a3(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    let duplicate = file.try_clone()?;
    let _held = open(lab, &file, XrcdFlags::CREATE)?;
    fs::remove_file(folder.join("domain"))?;
    drop(file);
    open(lab, &duplicate, XrcdFlags::empty())?;
    drop(duplicate);
    let successor = folder.create("domain")?;
    open(lab, &successor, XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE)?;
    Ok(())
}

pub(super) fn a4(lab: &Lab) -> Verdict {
    // The openers that race here are threads. `processes` repeats the check with processes.
    const THREADS: usize = 8;
    let folder = Folder::new()?;
    for round in 0..20 {
        let file = folder.create(round.to_string())?;
        let start = Barrier::new(THREADS);
        let race = || {
            start.wait();
            open(lab, &file, XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE)
        };
        let outcomes: Vec<_> = thread::scope(|scope| {
            let racers: Vec<_> = (0..THREADS).map(|_| scope.spawn(race)).collect();
            racers.into_iter().filter_map(|racer| racer.join().ok()).collect()
        });
        let winners = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        equal("number of exclusive opens that succeeded", winners, 1)?;
        for loser in outcomes.into_iter().filter(Result::is_err) {
            refused("the others", loser, EINVAL)?;
        }
    }
    Ok(())
}

pub(super) fn a5(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    let none = XrcdFlags::empty();
    let both = XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE;
    refused("absent, no flags", open(lab, &file, none), EAGAIN)?;
    refused("absent, O_EXCL", open(lab, &file, XrcdFlags::EXCLUSIVE), EAGAIN)?;
    open(lab, &file, XrcdFlags::CREATE)?.close()?;
    let held = open(lab, &file, both)?;
    let joined = open(lab, &file, none)?;
    let again = open(lab, &file, XrcdFlags::CREATE)?;
    refused("present, O_CREAT|O_EXCL", open(lab, &file, both), EINVAL)?;
    refused("present, O_EXCL", open(lab, &file, XrcdFlags::EXCLUSIVE), EINVAL)?;
    for handle in [held, joined, again] {
        handle.close()?;
    }
    Ok(())
}

pub(super) fn a6(lab: &Lab) -> Verdict {
    let first = lab.route(&Terms::default())?;
    let second = lab.far.device.open_xrcd(None, XrcdFlags::empty())?;
    let stranger = lab.far.new_srq(&second, &lab.far.cq)?;
    receive(&stranger, 1, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    first.ini.post_send(&[request(2, SendOperation::Send, &data, stranger.number()?)])?;
    let ended = lab.next("a send to an SRQ of another private domain", &lab.near.cq)?;
    check(lab.xrc_violation.contains(&ended.status), || {
        format!("a send into another private domain ended with {:?}", ended.status)
    })?;
    lab.stays_quiet("the SRQ of the other domain", &lab.far.cq)
}

pub(super) fn a7(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    // All other bits are ignored, including O_RDWR and O_CLOEXEC.
    let others = XrcdFlags::from_bits_retain(!(XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE).bits());
    refused("an open with other flags alone", open(lab, &file, others), EAGAIN)?;
    let _held = open(lab, &file, XrcdFlags::CREATE | others)?;
    open(lab, &file, others)?;
    Ok(())
}

pub(super) fn a13(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    let handle = open(lab, &file, XrcdFlags::CREATE)?;
    let other = open(lab, &file, XrcdFlags::empty())?;
    let tgt = lab.far.new_tgt(&other)?;
    refused("closing a handle in use", other.close(), EBUSY)?;
    handle.close()?;
    check(handle.close().is_err(), || "a closed handle could be closed again".to_owned())?;
    let srq = lab.far.device.create_srq(lab.far.srq_init(&handle, &lab.far.cq));
    check(srq.is_err(), || "an SRQ could be created with a closed handle".to_owned())?;
    let opened = lab.far.device.open_qp(&handle, tgt.number());
    check(opened.is_err(), || "a TGT could be opened with a closed handle".to_owned())
}

pub(super) fn a16(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    let handle = open(lab, &file, XrcdFlags::CREATE)?;
    drop(file);
    let route = lab.route_into(handle, &Terms::default())?;
    receive(&route.srq, 1, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[request(2, SendOperation::Send, &data, route.srq_number)])?;
    lab.succeeds("a receive after the file was closed", &route.cq, 1, CompletionOpcode::Receive)?;
    let again = File::open(folder.join("domain"))?;
    open(lab, &again, XrcdFlags::empty())?;
    Ok(())
}

pub(super) fn a9(lab: &Lab) -> Verdict {
    for side in lab.sides() {
        if side.device.attributes().capabilities.contains(DeviceCapabilities::XRC) {
            return Err(Deviation::Skipped("the device has XRC".to_owned()));
        }
    }
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    refused("a domain of a file", open(lab, &file, XrcdFlags::CREATE), EOPNOTSUPP)?;
    // XRC support is checked before flags.
    refused("a domain that does not exist", open(lab, &file, XrcdFlags::empty()), EOPNOTSUPP)?;
    let private = lab.far.device.open_xrcd(None, XrcdFlags::CREATE);
    refused("a private domain", private, EOPNOTSUPP)?;
    refused("an INI", lab.near.device.create_qp(lab.near.ini_init()), EOPNOTSUPP)?;
    refused("a TGT", lab.far.device.create_qp(QpInit::new(QpType::XrcTgt)), EOPNOTSUPP)
}

pub(super) fn a10(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    let first = open(lab, &file, XrcdFlags::CREATE)?;
    let second = open(lab, &file, XrcdFlags::empty())?;
    let srq = lab.far.new_srq(&first, &lab.far.cq)?;
    let tgt = lab.far.new_tgt(&second)?;
    let ini = lab.near.new_ini()?;
    lab.join(&ini, &tgt, &Terms::default())?;
    receive(&srq, 7, &[lab.far.piece(0, 64)])?;
    lab.near.fill(0, 8, 3)?;
    ini.post_send(&[request(8, SendOperation::Send, &[lab.near.piece(0, 8)], srq.number()?)])?;
    lab.succeeds("a receive across two handles", &lab.far.cq, 7, CompletionOpcode::Receive)?;
    lab.far.holds("the message", 0, 8, 3)
}

pub(super) fn a11(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    let first = open(lab, &file, XrcdFlags::CREATE)?;
    let second = open(lab, &file, XrcdFlags::empty())?;
    let third = open(lab, &file, XrcdFlags::empty())?;
    let srq = lab.far.new_srq(&first, &lab.far.cq)?;
    let tgt = lab.far.new_tgt(&third)?;
    second.close()?;
    refused("closing the handle of an SRQ", first.close(), EBUSY)?;
    refused("closing the handle of a TGT", third.close(), EBUSY)?;
    let opened = lab.far.device.open_qp(&first, tgt.number())?;
    srq.destroy()?;
    refused("closing the handle of an opened TGT", first.close(), EBUSY)?;
    opened.destroy()?;
    first.close()?;
    tgt.destroy()?;
    Ok(third.close()?)
}

pub(super) fn a12(lab: &Lab) -> Verdict {
    let folder = Folder::new()?;
    let file = folder.create("domain")?;
    let handle = open(lab, &file, XrcdFlags::CREATE)?;
    let srq = lab.far.new_srq(&handle, &lab.far.cq)?;
    refused("closing the handle of an SRQ", handle.close(), EBUSY)?;
    open(lab, &file, XrcdFlags::empty())?.close()?;
    srq.destroy()?;
    handle.close()?;
    refused("an open after the last reference was dropped", open(lab, &file, XrcdFlags::empty()), EAGAIN)
}
