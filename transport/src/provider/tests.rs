//! Tests of the decision table, and of opening the chosen device on a host without a NIC.

use super::choose::{Choice, ClientAddress, Nic, NicState, Wish, choose};
use super::open_from;
use super::survey::Nics;
use crate::node::options::{NicOptions, NodeOptions, ProviderChoice};
use crate::{NoNic, StartError};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_verbs::{Device, DeviceInfo, GidEntry, GidKind, PathChoice, PortState, Provider, VerbsError};

const DRAWN: &str = "127.9.9.9";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns a NIC whose GIDs are written `INDEX=ADDRESS`, with `v1:` before the address for RoCE v1.
fn nic(name: &str, gids: &[&str]) -> Nic {
    let gids = gids.iter().map(|text| {
        let (index, address) = text.split_once('=').unwrap();
        let (kind, address) =
            address.strip_prefix("v1:").map_or((GidKind::RoceV2, address), |rest| (GidKind::RoceV1, rest));
        GidEntry { index: index.parse().unwrap(), gid: ip(address).into(), kind }
    });
    let state = NicState { ports: vec![PortState::Active], gids: gids.collect(), holds: Vec::new() };
    Nic { name: name.to_owned(), state: Ok(state) }
}

fn holding(mut nic: Nic, address: &str) -> Nic {
    nic.state.as_mut().unwrap().holds.push(ip(address));
    nic
}

fn down(mut nic: Nic) -> Nic {
    nic.state.as_mut().unwrap().ports = vec![PortState::Down, PortState::Down];
    nic
}

/// Settings of a test. Other settings have the defaults of a node.
#[derive(Default)]
struct Ask<'a> {
    choice: ProviderChoice,
    device: Option<&'a str>,
    gid_index: Option<u16>,
    listen: &'a [&'a str],
    named: Option<&'a str>,
    allow: bool,
    software_only: Option<&'static str>,
}

fn decide(ask: &Ask<'_>, nics: Result<Vec<Nic>, NoNic>) -> Choice {
    let listen: Vec<SocketAddr> = ask.listen.iter().map(|text| text.parse().unwrap()).collect();
    let wish = Wish {
        choice: ask.choice,
        device: ask.device,
        gid_index: ask.gid_index,
        listen: &listen,
        client: ask.named.map_or(ClientAddress::Drawn(ip(DRAWN)), |text| ClientAddress::Named(ip(text))),
        may_leave_host: ask.allow,
        software_only: ask.software_only,
    };
    choose(&wish, || nics)
}

/// Returns `DEVICE ADDRESS...` for a NIC, `soft` for the software device, and otherwise the error.
fn short(choice: &Choice) -> String {
    match choice {
        Choice::Nic(nic) => nic.listen.iter().fold(nic.device.clone(), |text, one| format!("{text} {one}")),
        Choice::Software(_) => "soft".to_owned(),
        Choice::Nothing(reason) => format!("none: {reason}"),
    }
}

/// Checks one row of the table, with the settings, the NICs and the expected choice.
fn expect(ask: &Ask<'_>, nics: &[Nic], wanted: &str) {
    let choice = decide(ask, Ok(nics.to_vec()));
    assert_eq!(short(&choice), wanted, "listening on {:?}, device {:?}", ask.listen, ask.device);
}

/// Checks that `require` is refused with these words, and that `auto` then selects the software device for the same
/// reason.
fn expect_refusal(ask: &Ask<'_>, nics: &[Nic], words: &[&str]) {
    let required = Ask { choice: ProviderChoice::Require, ..*ask };
    let Choice::Nothing(reason) = decide(&required, Ok(nics.to_vec())) else {
        panic!("{words:?} was not refused");
    };
    let reason = reason.to_string();
    for word in words {
        assert!(reason.contains(word), "{reason:?} does not say {word:?}");
    }
    let by_itself = decide(&Ask { choice: ProviderChoice::Auto, ..*ask }, Ok(nics.to_vec()));
    assert_eq!(by_itself, Choice::Software(format!("softrdma: {reason}")));
}

#[test]
fn nic_with_listen_address_is_chosen() {
    let rxe = || nic("rxe0", &["0=fe80::1", "1=10.0.0.2", "2=fd00::2"]);
    let other = || nic("rxe1", &["0=10.0.1.2"]);
    let both = [other(), rxe()];
    expect(&Ask { listen: &["10.0.0.2:7000"], ..Ask::default() }, &both, "rxe0 10.0.0.2:7000");
    expect(&Ask { listen: &["[fd00::2]:0"], ..Ask::default() }, &both, "rxe0 [fd00::2]:0");
    expect(&Ask { listen: &["[::ffff:10.0.0.2]:5"], ..Ask::default() }, &both, "rxe0 [::ffff:10.0.0.2]:5");
    let two: &[&str] = &["10.0.0.2:7000", "[fd00::2]:7000"];
    expect(&Ask { listen: two, ..Ask::default() }, &both, "rxe0 10.0.0.2:7000 [fd00::2]:7000");
    expect(&Ask { listen: &["127.0.0.1:7000"], ..Ask::default() }, &both, "soft");
    expect(&Ask { listen: &["10.0.9.9:7000"], ..Ask::default() }, &both, "soft");
    let soft = Ask { choice: ProviderChoice::Soft, listen: &["10.0.0.2:7000"], ..Ask::default() };
    expect(&soft, &both, "soft");
    expect(
        &Ask { listen: &["10.0.1.2:1"], device: Some("rxe1"), ..Ask::default() },
        &both,
        "rxe1 10.0.1.2:1",
    );
    let index = Ask { listen: &["10.0.0.2:1"], gid_index: Some(1), device: Some("rxe0"), ..Ask::default() };
    expect(&index, &both, "rxe0 10.0.0.2:1");
}

#[test]
fn loopback_address_selects_software_device_unless_nic_has_address() {
    let drop_in = || nic("trunkline0", &["0=10.0.0.2", "1=127.0.0.1"]);
    expect(&Ask { listen: &["127.0.0.1:7"], ..Ask::default() }, &[drop_in()], "trunkline0 127.0.0.1:7");
    expect(&Ask { listen: &["127.3.2.1:7"], ..Ask::default() }, &[drop_in()], "soft");
    let holds = holding(drop_in(), "127.3.2.1");
    expect(&Ask { listen: &["127.3.2.1:7"], ..Ask::default() }, &[holds], "trunkline0 127.3.2.1:7");
}

#[test]
fn wildcard_listens_on_all_addresses_of_one_nic() {
    let rxe = [nic("rxe0", &["0=fe80::1", "1=v1:10.0.0.2", "2=10.0.0.2", "3=fd00::2", "4=10.0.0.3"])];
    let v4 = Ask { listen: &["0.0.0.0:7000"], ..Ask::default() };
    expect(&v4, &rxe, "rxe0 10.0.0.2:7000 10.0.0.3:7000");
    expect(&Ask { listen: &["0.0.0.0:0"], ..Ask::default() }, &rxe, "rxe0 10.0.0.2:0");
    expect(
        &Ask { listen: &["[::]:7000"], ..Ask::default() },
        &rxe,
        "rxe0 10.0.0.2:7000 [fd00::2]:7000 10.0.0.3:7000",
    );
    expect(
        &Ask { gid_index: Some(3), listen: &["[::]:7000"], ..Ask::default() },
        &rxe,
        "rxe0 [fd00::2]:7000",
    );
    expect_refusal(&v4, &[nic("rxe0", &["3=fd00::2"])], &["0.0.0.0", "rxe0 has fd00::2"]);
}

#[test]
fn client_takes_first_reachable_address_if_allowed() {
    let rxe = || nic("rxe0", &["0=fe80::1", "1=fd00::2", "2=v1:10.0.0.9", "3=10.0.0.2"]);
    let allowed = || Ask { allow: true, ..Ask::default() };
    expect(&allowed(), &[rxe()], "rxe0 10.0.0.2:0");
    expect(&allowed(), &[nic("rxe0", &["0=fe80::1", "1=fd00::2"])], "rxe0 [fd00::2]:0");
    expect(&Ask { gid_index: Some(1), ..allowed() }, &[rxe()], "rxe0 [fd00::2]:0");
    expect(&allowed(), &[down(rxe()), nic("rxe1", &["0=10.0.1.2"])], "rxe1 10.0.1.2:0");
    expect_refusal(
        &Ask::default(),
        &[rxe()],
        &["10.0.0.2 of the RDMA device rxe0", "--allow-unauthenticated"],
    );
    let drop_in = || nic("trunkline0", &["0=10.0.0.2", "1=127.0.0.1"]);
    expect(&Ask::default(), &[holding(drop_in(), DRAWN)], &format!("trunkline0 {DRAWN}:0"));
    expect(&Ask::default(), &[drop_in()], "trunkline0 127.0.0.1:0");
    expect(&allowed(), &[holding(drop_in(), DRAWN)], "trunkline0 10.0.0.2:0");
    expect(&Ask { named: Some("10.0.0.2"), ..allowed() }, &[drop_in()], "trunkline0 10.0.0.2:0");
    expect(&Ask { named: Some("10.0.5.5"), ..allowed() }, &[drop_in()], "soft");
}

#[test]
fn unusable_nic_is_reported_with_remedy() {
    let rxe = || nic("rxe0", &["0=fe80::1", "1=10.0.0.2", "2=v1:10.0.0.2"]);
    let at = || Ask { listen: &["10.0.0.2:7000"], ..Ask::default() };
    expect_refusal(&at(), &[], &["no RDMA device", "ibv_devices"]);
    expect_refusal(&Ask { device: Some("mlx5_0"), ..at() }, &[rxe()], &["called mlx5_0", "there are: rxe0"]);
    expect_refusal(&at(), &[down(rxe())], &["no port", "rxe0", "ip link"]);
    expect_refusal(&at(), &[nic("rxe0", &["0=fe80::1"])], &["rxe0 are link-local", "ip addr add"]);
    expect_refusal(&at(), &[nic("rxe0", &["0=v1:10.0.0.2"])], &["rxe0 has no RoCE v2 GID"]);
    expect_refusal(&at(), &[nic("ib0", &[])], &["ib0 has no RoCE v2 GID"]);
    let closed = Nic { name: "mlx5_0".to_owned(), state: Err("out of memory".to_owned()) };
    expect_refusal(&at(), std::slice::from_ref(&closed), &["mlx5_0 cannot be opened: out of memory"]);
    let elsewhere = Ask { listen: &["10.0.0.3:7000"], ..Ask::default() };
    let both = [rxe(), nic("rxe1", &["0=10.0.1.2"])];
    expect_refusal(&elsewhere, &both, &["address 10.0.0.3", "rxe0 has 10.0.0.2; rxe1 has 10.0.1.2"]);
    expect_refusal(&elsewhere, &[closed, rxe()], &["address 10.0.0.3"]);
    expect_refusal(&Ask { listen: &["[fe80::1%2]:1"], ..Ask::default() }, &both, &["fe80::1 is link-local"]);
    let scattered = Ask { listen: &["10.0.0.2:1", "10.0.1.2:1"], ..Ask::default() };
    expect_refusal(&scattered, &both, &["no single RDMA device", "rxe1 has 10.0.1.2"]);
    let gid = |index| Ask { gid_index: Some(index), ..at() };
    expect_refusal(
        &gid(0),
        &[rxe()],
        &["GID 0 of the RDMA device rxe0 is link-local", "usable are: 1 (10.0.0.2)"],
    );
    expect_refusal(&gid(2), &[rxe()], &["GID 2", "not one of RoCE v2"]);
    expect_refusal(&gid(7), &[rxe()], &["GID 7", "is not used"]);
    let two = nic("rxe0", &["1=10.0.0.2", "2=10.0.0.3"]);
    expect_refusal(&gid(2), &[two], &["GID 2", "10.0.0.2"]);
}

#[test]
fn nics_are_not_queried_without_support_or_with_software_only_options() {
    let required = Ask { choice: ProviderChoice::Require, ..Ask::default() };
    assert_eq!(decide(&required, Err(NoNic::NotBuilt)), Choice::Nothing(NoNic::NotBuilt));
    let Choice::Software(why) = decide(&Ask::default(), Err(NoNic::NotBuilt)) else { panic!("no software") };
    assert_eq!(why, "softrdma: no rdma-core support in this build (build with --features rdma-core)");
    let faults = Ask { software_only: Some("faults were asked for"), ..Ask::default() };
    for ask in [faults, Ask { choice: ProviderChoice::Soft, ..Ask::default() }] {
        let listen = [SocketAddr::new(ip("10.0.0.2"), 0)];
        let wish = Wish {
            choice: ask.choice,
            device: None,
            gid_index: None,
            listen: &listen,
            client: ClientAddress::Drawn(ip(DRAWN)),
            may_leave_host: true,
            software_only: ask.software_only,
        };
        let choice = choose(&wish, || panic!("NICs were looked for"));
        assert!(matches!(choice, Choice::Software(_)));
    }
}

/// A family that contains one NIC, which is the software device under another name.
#[derive(Debug)]
struct Pretended {
    name: &'static str,
    address: Option<IpAddr>,
}

impl Provider for Pretended {
    fn name(&self) -> &'static str {
        "pretended"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let info = DeviceInfo { name: self.name.to_owned(), guid: 1 };
        self.address.map(|_| vec![info]).ok_or(VerbsError::Missing("no subsystem"))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        let address = self.address.filter(|_| name == self.name).ok_or(VerbsError::NoDevice)?;
        let device = SoftDevice::open(SoftOptions { addresses: vec![address], ..SoftOptions::default() })?;
        Ok(device)
    }
}

impl Nics for Pretended {
    fn holder(&self, address: IpAddr) -> Result<String, VerbsError> {
        if self.address == Some(address) { Ok(self.name.to_owned()) } else { Err(VerbsError::NoDevice) }
    }
}

#[test]
fn chosen_nic_is_opened() {
    let nics = Pretended { name: "rxe0", address: Some(ip("127.21.0.9")) };
    let here = Path::new("/nonexistent");
    let plain = NodeOptions::new();
    let at = |text: &str| [text.parse().unwrap()];
    let chosen = open_from(&plain, &at("127.21.0.9:0"), Some(&nics), here).unwrap();
    assert_eq!((chosen.provider, chosen.why.as_str()), ("pretended", "rdma-core: rxe0 has 127.21.0.9"));
    assert_eq!(super::gid_index(chosen.device.as_ref(), ip("127.21.0.9")), Some(0));
    let chosen = open_from(&plain, &at("127.21.0.8:0"), Some(&nics), here).unwrap();
    assert_eq!(chosen.provider, "softrdma");
    assert!(chosen.why.contains("no RDMA device has the address 127.21.0.8"), "{}", chosen.why);
    let named = NicOptions { device: Some("mlx5_0".to_owned()), gid_index: None };
    let required = NodeOptions::new().nic(named).provider(ProviderChoice::Require);
    let refused = open_from(&required, &at("127.21.0.9:0"), Some(&nics), here);
    assert!(matches!(refused, Err(StartError::NoHardware(NoNic::NotNamed { .. }))), "{refused:?}");
}

#[test]
fn host_without_devices_names_reason() {
    let none = Pretended { name: "rxe0", address: None };
    let required = || NodeOptions::new().provider(ProviderChoice::Require);
    let reason = |folder: &Path| match open_from(&required(), &[], Some(&none), folder) {
        Err(StartError::NoHardware(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(Path::new("/nonexistent/infiniband")), NoNic::NoSubsystem);
    let folder = trunkline_testkit::Folder::new().unwrap();
    let empty = reason(folder.path());
    let file = folder.join("uverbs0");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o0)).unwrap();
    let denied = reason(folder.path());
    assert_eq!(empty, NoNic::NoDevice);
    // Root can read all files.
    let wanted = if nix::unistd::geteuid().is_root() { NoNic::NoDevice } else { NoNic::NoPermission(file) };
    assert_eq!(denied, wanted);
}

#[test]
fn shared_memory_only_selects_software_device() {
    let of = |path| super::software_only(&NodeOptions::new().path(path));
    assert_eq!(of(PathChoice::Shm), Some("shared memory only was asked for"));
    assert_eq!((of(PathChoice::Auto), of(PathChoice::Udp)), (None, None));
}
