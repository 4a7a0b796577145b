//! SendTargets (RFC 7143 appendix C).

use std::net::SocketAddr;

use super::event::SessionRequest;
use super::parameters::TargetPortal;
use super::parameters::{TargetDescription, TargetParameters};
use crate::negotiation::SessionType;
use crate::text::Keys;

/// The answer to `SendTargets=value`, or `None` where this session may not send that.
///
/// | value | discovery session | normal session |
/// |---|---|---|
/// | All | every target | not allowed |
/// | a name | that target, if it exists | the same name only |
/// | empty | not allowed | this target |
pub(super) fn send_targets(
    parameters: &TargetParameters,
    session: &SessionRequest,
    local_address: Option<SocketAddr>,
    value: &str,
) -> Option<Keys> {
    let own_name = session.target_name.as_deref();
    let is_discovery = session.session_type == SessionType::Discovery;
    let is_asked: Box<dyn Fn(&TargetDescription) -> bool> = match value {
        "All" if is_discovery => Box::new(|_| true),
        "" if !is_discovery => Box::new(|target| own_name.is_some_and(|name| name.eq_ignore_ascii_case(&target.name))),
        "All" | "" => return None,
        name if is_discovery => Box::new(move |target| target.name.eq_ignore_ascii_case(name)),
        name => Box::new(move |target| {
            target.name.eq_ignore_ascii_case(name) && own_name.is_some_and(|own| own.eq_ignore_ascii_case(name))
        }),
    };
    // An initiator is shown the targets that it may log in to.
    let is_shown = |target: &TargetDescription| target.access.admits(&session.initiator_name);
    let mut keys = Keys::new();
    for target in parameters.targets.iter().filter(|target| is_asked(target) && is_shown(target)) {
        keys.push("TargetName", target.name.clone());
        for TargetPortal { address, group } in reachable(&target.portals, local_address) {
            keys.push("TargetAddress", format!("{address},{group}"));
        }
    }
    Some(keys)
}

/// The portals as an initiator can use them: an unspecified address is replaced by the one that it
/// connected to, if the family fits.
fn reachable(portals: &[TargetPortal], local_address: Option<SocketAddr>) -> Vec<TargetPortal> {
    let local = local_address.map(|local| local.ip().to_canonical());
    let mut addresses: Vec<TargetPortal> = Vec::new();
    for TargetPortal { address: portal, group } in portals {
        let ip = match local {
            _ if !portal.ip().is_unspecified() => portal.ip().to_canonical(),
            // An IPv6 wildcard may serve IPv4 as well; an IPv4 one cannot serve IPv6.
            Some(local) if portal.is_ipv6() || local.is_ipv4() => local,
            _ => continue,
        };
        let address = TargetPortal { address: SocketAddr::new(ip, portal.port()), group: *group };
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_portals_become_what_the_initiator_connected_to() {
        let portals = ["0.0.0.0:3260", "[::]:3260", "192.0.2.1:3261"]
            .map(|text| TargetPortal { address: text.parse().unwrap(), group: 1 });
        let text = |local: &str| {
            let addresses = reachable(&portals, Some(local.parse().unwrap()));
            addresses.iter().map(|portal| portal.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(text("127.0.0.1:3260"), ["127.0.0.1:3260", "192.0.2.1:3261"]);
        assert_eq!(text("[2001:db8::1]:3260"), ["[2001:db8::1]:3260", "192.0.2.1:3261"]);
        assert_eq!(text("[::ffff:127.0.0.1]:3260"), ["127.0.0.1:3260", "192.0.2.1:3261"]);
    }
}
