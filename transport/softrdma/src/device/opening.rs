//! Opening a device.
//!
//! Owns the order in which a device's parts are created: membership of the host, link, addresses, first
//! shard, control and background thread. Also creates the links of further shards. Called once per device, by
//! [`super::SoftDevice::open`].
#![forbid(unsafe_code)]

use super::control::{Control, ControlInit};
use super::core::Core;
use super::device_parts::DeviceParts;
use super::objects::async_events::AsyncEvents;
use super::options::{LinkChoice, OpenError, SoftOptions};
use super::shard::{LocalInit, Neighbours, PathPolicy, Refusal};
use super::shards::Shards;
use super::shards::maker::{MakeLink, ShardMaker};
use super::slot::Slot;
use super::tables::Tables;
use super::tables::directory::{MAX_SHARDS, QpDirectory};
use super::tables::gid_table::{GidTable, MAX_ENTRIES};
use super::tables::guid::{address_guid, node_guid};
use super::tables::numbers::Numbers;
use super::tables::random::Random;
use super::{
    DEVICE_NAME, MAX_CQE, MAX_INLINE, MAX_MESSAGE, MAX_QPS, MAX_RD_ATOMIC, MAX_REGIONS, MAX_SGE, MAX_SRQS,
    MAX_WR,
};
use crate::host::{AwayFiles, Host, Members, Targets};
use crate::link::{Faults, FirstSockets, Link, Recorder, Tap, UdpLink};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use trunkline_machine::Runtime;
use trunkline_verbs::{DeviceAttributes, DeviceCapabilities, Mtu, PathChoice, PortAttributes, PortState};

/// The parts of an opened device.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) core: Arc<Core>,
    pub(super) attributes: DeviceAttributes,
    pub(super) port: PortAttributes,
    pub(super) host: Option<Arc<Host>>,
}

/// Opens a device.
pub(super) fn open(mut options: SoftOptions) -> Result<Opened, OpenError> {
    let slot = options.slot.take();
    if slot.as_ref().is_some_and(Slot::is_empty) {
        return Err(OpenError::Removed);
    }
    let membership = Membership::join(&options)?;
    let paths = paths(&options)?;
    let capture_has_ended = Arc::default();
    let first_sockets = Arc::default();
    let tap = make_link(&options, &membership, &first_sockets, &capture_has_ended)?;
    let gids = gid_table(&options, &*tap.wire.link)?;
    let away = away_files(&options, &gids)?;
    // If the host's network is not up yet, derive the GUID from a loopback address, unless the user named addresses.
    let later = (!gids.is_named() && membership.host.is_some()).then_some(Ipv4Addr::LOCALHOST.into());
    let first = gids.addresses().first().copied().or(later).ok_or(OpenError::NoAddress)?;
    let guid = guid(&options.runtime, first);
    let name = if paths == PathPolicy::Memory { "shm" } else { tap.wire.link.name() };
    let attributes = attributes(name.to_owned(), guid, &options);
    let (runtime, udp_port) = (options.runtime.clone(), options.receiving_port());
    let is_in_process = matches!(options.link, LinkChoice::InProcess(_));
    let most_shards = options.max_shards.unwrap_or(MAX_SHARDS);
    let events = AsyncEvents::new(&runtime).map_err(|error| OpenError::Os {
        doing: "make an eventfd",
        source: io::Error::from_raw_os_error(error.errno()),
    })?;
    let events = Arc::new(events);
    let mut random = options.seed.map_or_else(|| Random::of(&runtime), Random::new);
    let Membership { host, targets, members } = membership;
    let tables = Tables::new(&mut random, attributes.max_mr, |random| Numbers::new(random, host.as_ref()));
    let tables = Arc::new(tables);
    let neighbours = Neighbours::new(QpDirectory::new(Numbers::new(&mut random, host.as_ref())));
    let maker = ShardMaker {
        events: Arc::clone(&events),
        unknown_srq: options.unknown_srq,
        tables: Arc::clone(&tables),
        neighbours: Arc::clone(&neighbours),
        runtime: runtime.clone(),
        local: LocalInit::new(host.clone(), targets.clone(), paths, random.next()),
        members: members.as_ref().map(Arc::downgrade),
        make_link: link_maker(options, members.as_ref(), first_sockets, capture_has_ended),
    };
    let (shard, sleeper) =
        maker.first(tap, members.clone()).map_err(os("make what wakes the device's background thread"))?;
    let active_mtu = shard.shard.enter().link().mtu_of(first);
    let control = Control::new(ControlInit {
        gids,
        events: Arc::clone(&events),
        random,
        guid,
        udp_port,
        asks_host: !runtime.is_simulated(),
        is_in_process,
        host: host.clone(),
        members,
        targets,
        away,
    });
    let shards = Shards::new(shard, neighbours, tables, most_shards);
    let parts = DeviceParts::new(control, shards, runtime);
    let core = Core::start(parts, maker, sleeper, events, host.clone())
        .map_err(os("start the device's background thread"))?;
    if slot.is_some_and(|slot| !slot.fill(&core)) {
        return Err(OpenError::Removed);
    }
    let port = PortAttributes {
        state: PortState::Active,
        max_mtu: Mtu::Mtu4096,
        active_mtu,
        max_message_bytes: MAX_MESSAGE,
        gid_table_length: 256,
    };
    Ok(Opened { core, attributes, port, host })
}

fn os(doing: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Os { doing, source }
}

/// A device's membership of its host; empty on an in-process network.
#[derive(Debug)]
struct Membership {
    host: Option<Arc<Host>>,
    targets: Option<Arc<Targets>>,
    members: Option<Arc<Members>>,
}

impl Membership {
    fn join(options: &SoftOptions) -> Result<Self, OpenError> {
        let port = options.receiving_port();
        let host = match &options.link {
            LinkChoice::Udp => Some(Host::join_with(options.runtime_directory.as_deref(), port)?),
            LinkChoice::Simulated(process) => {
                Some(Host::in_memory(process.host().memory(), process.life(), port)?)
            }
            LinkChoice::InProcess(_) | LinkChoice::Custom(_) => None,
        };
        let targets = host.as_ref().map(|host| Targets::open(Arc::clone(host)).map(Arc::new)).transpose()?;
        let members = host.as_ref().map(|host| Members::new(Arc::clone(host))).transpose()?;
        Ok(Self { host, targets, members })
    }
}

/// Returns the paths that QPs may use. Faults, captures and an observer need the packets on the link.
fn paths(options: &SoftOptions) -> Result<PathPolicy, OpenError> {
    let reasons = [
        (options.path == PathChoice::Udp, Refusal::AsksForUdp),
        (options.capture.is_some(), Refusal::Captures),
        (options.faults.is_some(), Refusal::Faults),
        (options.observer.is_some(), Refusal::Observed),
    ];
    match reasons.into_iter().find(|(applies, _)| *applies) {
        Some((_, reason)) if options.path == PathChoice::Shm => Err(OpenError::OnlyOnLink(reason.ours())),
        Some((_, reason)) => Ok(PathPolicy::Network(reason)),
        None if options.path == PathChoice::Shm => Ok(PathPolicy::Memory),
        None => Ok(PathPolicy::Either),
    }
}

/// Creates the link of the first shard, with the faults, capture and observer of the options.
fn make_link(
    options: &SoftOptions,
    membership: &Membership,
    first: &Arc<FirstSockets>,
    capture_has_ended: &Arc<AtomicBool>,
) -> Result<Tap, OpenError> {
    let (members, targets) = (membership.members.as_ref(), membership.targets.as_ref());
    let link: Box<dyn Link> = match &options.link {
        LinkChoice::Udp | LinkChoice::Simulated(_) => {
            Box::new(udp_link(options, first).of_members(members, targets))
        }
        LinkChoice::InProcess(hub) => Box::new(
            hub.link().map_err(|source| OpenError::Os { doing: "join the in-process network", source })?,
        ),
        LinkChoice::Custom(factory) => {
            factory.make().map_err(|source| OpenError::Os { doing: "make the link", source })?
        }
    };
    tapped(options, link, capture_has_ended)
}

/// Returns the function that creates the links of further shards, each with its own ports. An in-process network does
/// not use ports, so its devices have one shard.
fn link_maker(
    options: SoftOptions,
    members: Option<&Arc<Members>>,
    first: Arc<FirstSockets>,
    capture_has_ended: Arc<AtomicBool>,
) -> MakeLink {
    // The links must not keep the device's membership alive.
    let members = members.map(Arc::downgrade);
    Box::new(move || match &options.link {
        LinkChoice::Udp | LinkChoice::Simulated(_) => {
            let members = members.as_ref().and_then(Weak::upgrade);
            let link = udp_link(&options, &first).of_shard(members.as_ref());
            Ok(Some(tapped(&options, Box::new(link), &capture_has_ended)?))
        }
        LinkChoice::InProcess(_) | LinkChoice::Custom(_) => Ok(None),
    })
}

fn udp_link(options: &SoftOptions, first: &Arc<FirstSockets>) -> UdpLink {
    let link = match &options.link {
        LinkChoice::Simulated(process) => UdpLink::over(Box::new(process.sockets())),
        _ => options.receive_buffer.map_or_else(UdpLink::new, UdpLink::with_receive_buffer),
    };
    link.at_port(options.receiving_port()).with_first(first)
}

/// Adds the faults, the capture and the observer of the options to a link.
fn tapped(
    options: &SoftOptions,
    link: Box<dyn Link>,
    capture_has_ended: &Arc<AtomicBool>,
) -> Result<Tap, OpenError> {
    let mut tap = Tap::new(link);
    if let Some(path) = &options.capture {
        let clock = options.runtime.clock().clone();
        let recorder = Recorder::open(path, clock, Arc::clone(capture_has_ended))
            .map_err(|source| OpenError::Capture { path: path.clone(), source })?;
        tap.wire.recorder = Some(recorder);
    }
    tap.wire.observer = options.observer.clone();
    tap.faults = options.faults.map(Faults::new);
    Ok(tap)
}

/// Returns the GID table, with the addresses named in the options, which the link must have, or else the host's
/// addresses.
fn gid_table(options: &SoftOptions, link: &dyn Link) -> Result<GidTable, OpenError> {
    let addresses = match &options.link {
        LinkChoice::Simulated(process) if options.addresses.is_empty() => process.host().addresses(),
        _ => &options.addresses,
    };
    if addresses.is_empty() {
        return GidTable::of_host().map_err(os("list the interfaces"));
    }
    if addresses.len() > MAX_ENTRIES {
        return Err(OpenError::TooManyAddresses { named: addresses.len(), most: MAX_ENTRIES });
    }
    let addresses = addresses.iter().map(IpAddr::to_canonical).collect::<Vec<_>>();
    for address in &addresses {
        link.mtu(*address)?;
    }
    Ok(GidTable::named(addresses))
}

/// Returns the files that request the removal of the device, if it is removable. Fails while such a file
/// exists.
fn away_files(options: &SoftOptions, gids: &GidTable) -> Result<Option<AwayFiles>, OpenError> {
    if !options.removable || !matches!(options.link, LinkChoice::Udp) {
        return Ok(None);
    }
    let away = AwayFiles::new(options.runtime_directory.as_deref(), gids.addresses())?;
    if away.any() {
        return Err(OpenError::Removed);
    }
    Ok(Some(away))
}

fn guid(runtime: &Runtime, first: IpAddr) -> u64 {
    match runtime.is_simulated() {
        // A simulation must not depend on the host that it runs on.
        true => address_guid(first),
        false => node_guid(Some(first)),
    }
}

/// Returns the attributes that programs see.
fn attributes(link: String, guid: u64, options: &SoftOptions) -> DeviceAttributes {
    let mut capabilities = DeviceCapabilities::all();
    capabilities.set(DeviceCapabilities::XRC, !options.without_xrc);
    DeviceAttributes {
        name: DEVICE_NAME.to_owned(),
        link,
        guid,
        capabilities,
        max_qp: u32::try_from(MAX_QPS).unwrap_or(u32::MAX),
        max_qp_wr: MAX_WR,
        max_sge: MAX_SGE,
        max_cq: 1 << 16,
        max_cqe: MAX_CQE,
        max_mr: options.max_regions.unwrap_or(MAX_REGIONS).min(MAX_REGIONS),
        max_mr_size: 1 << 40,
        max_srq: u32::try_from(MAX_SRQS).unwrap_or(u32::MAX),
        max_srq_wr: MAX_WR,
        max_srq_sge: MAX_SGE,
        max_dest_rd_atomic: MAX_RD_ATOMIC,
        max_rd_atomic: MAX_RD_ATOMIC,
        max_inline_data: MAX_INLINE,
        ports: 1,
    }
}
