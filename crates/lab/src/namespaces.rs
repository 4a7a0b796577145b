//! Two network namespaces, one for each end, and two ways between them: a veth pair, whose MTU sets
//! the size of frames, and a link with delay and loss.

use std::process::{Command, Stdio};

use crate::error::LabError;
use crate::wan::Wan;

/// The target's address on the veth pair, and on the link with delay.
pub(crate) const TARGET_ADDRESSES: [&str; 2] = ["10.98.0.1", "10.98.1.1"];
const INITIATOR_ADDRESSES: [&str; 2] = ["10.98.0.2", "10.98.1.2"];
/// The veth pair.
const NEAR: &str = "lab0";
/// The link with delay.
const FAR: &str = "lab1";
/// Packets that the sender's side of the link with delay holds: more than TCP has in flight in these experiments.
const FAR_QUEUE_PACKETS: &str = "10000";

#[derive(Clone, Copy)]
pub(crate) enum End {
    Target,
    Initiator,
}

/// The congestion controls that a namespace may choose from, a setting of the whole machine. Those
/// of the experiments are added to it, and the setting is restored when this is dropped.
struct AllowedControls {
    before: String,
}

impl AllowedControls {
    const PATH: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

    /// `None` where the setting cannot be read or written; a control that cannot be chosen is then
    /// left out.
    fn with(added: &str) -> Option<Self> {
        let before = std::fs::read_to_string(Self::PATH).ok()?;
        std::fs::write(Self::PATH, format!("{} {added}", before.trim())).ok()?;
        Some(Self { before })
    }
}

impl Drop for AllowedControls {
    fn drop(&mut self) {
        // The write may fail; a destructor cannot report it.
        let _ = std::fs::write(Self::PATH, &self.before);
    }
}

/// Both namespaces, deleted when this is dropped.
pub(crate) struct Namespaces {
    names: Names,
    _allowed: Option<AllowedControls>,
    wan: Wan,
}

/// Names of namespaces that are deleted when this is dropped.
struct Names([String; 2]);

impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.0 {
            // It fails for a namespace that was never made, which is as good.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

impl Namespaces {
    /// `None` where they cannot be made: that needs root, `ip` and `/dev/net/tun`.
    pub(crate) fn new() -> Option<Self> {
        let id = std::process::id();
        let names = Names([format!("fbt{id}"), format!("fbi{id}")]);
        let [target, initiator] = &names.0;
        ip(&["netns", "add", target]).ok()?;
        ip(&["netns", "add", initiator]).ok()?;
        let peer = ["type", "veth", "peer", "name", NEAR, "netns", initiator];
        ip(&[&["-n", target, "link", "add", NEAR][..], &peer].concat()).ok()?;
        let wan = Wan::open([target, initiator], FAR).ok()?;
        for (namespace, addresses) in [(target, TARGET_ADDRESSES), (initiator, INITIATOR_ADDRESSES)] {
            bring_up(namespace, addresses).ok()?;
        }
        Some(Self { names, _allowed: AllowedControls::with("cubic"), wan })
    }

    /// Sets the size of frames.
    pub(crate) fn set_mtu(&self, bytes: u32) -> Result<(), LabError> {
        let bytes = bytes.to_string();
        let set = |namespace: &String, device| ip(&["-n", namespace, "link", "set", device, "mtu", &bytes]);
        self.names.0.iter().try_for_each(|namespace| set(namespace, NEAR).and_then(|()| set(namespace, FAR)))
    }

    /// Sets the congestion control of later connections.
    pub(crate) fn set_congestion_control(&self, name: &str) -> Result<(), LabError> {
        // The setting belongs to the namespace of the process that opens the file.
        let write = format!("echo {name} > /proc/sys/net/ipv4/tcp_congestion_control");
        let set = |namespace: &String| run(Command::new("ip").args(["netns", "exec", namespace, "sh", "-c", &write]));
        self.names.0.iter().try_for_each(set)
    }

    /// The link with delay.
    pub(crate) fn wan(&self) -> &Wan {
        &self.wan
    }

    pub(crate) fn name(&self, end: End) -> &str {
        let [target, initiator] = &self.names.0;
        match end {
            End::Target => target,
            End::Initiator => initiator,
        }
    }
}

fn bring_up(namespace: &str, addresses: [&str; 2]) -> Result<(), LabError> {
    for (device, address) in [NEAR, FAR].into_iter().zip(addresses) {
        ip(&["-n", namespace, "addr", "add", &format!("{address}/24"), "dev", device])?;
    }
    // One segment a packet: without it the stack would hand on 64 KiB at once, whatever the MTU.
    ip(&["-n", namespace, "link", "set", NEAR, "gso_max_segs", "1"])?;
    ip(&["-n", namespace, "link", "set", FAR, "txqueuelen", FAR_QUEUE_PACKETS])?;
    ["lo", NEAR, FAR].iter().try_for_each(|device| ip(&["-n", namespace, "link", "set", device, "up"]))
}

fn ip(arguments: &[&str]) -> Result<(), LabError> {
    run(Command::new("ip").args(arguments))
}

fn run(command: &mut Command) -> Result<(), LabError> {
    let words = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().map_err(|error| LabError::Run(words.clone(), error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(LabError::Other(format!("{words}: {}", String::from_utf8_lossy(&output.stderr).trim()))),
    }
}
