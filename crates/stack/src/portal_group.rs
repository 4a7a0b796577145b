//! A session that moves between the portals of one portal group.
//!
//! Within a group a login by the same initiator name and ISID is *the same* session, reinstated
//! (RFC 7143 6.3.5): the target ends the old one and its tasks, on any portal, before it answers.
//! So a session whose portal is lost may go on through another one, and no earlier command can take
//! effect after a later one. Between groups that is not so; they are never mixed here.
//!
//! Each attempt to connect starts one portal further, so that a portal that accepts connections and
//! never answers is skipped next time; one that refuses is skipped at once.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use initiator::{BoxedStream, Connecting, Connector};
use iscsi::url::Portal;

/// Connects to the portals of a group in turn.
pub(crate) struct GroupConnector {
    inner: Arc<dyn Connector>,
    own: Portal,
    state: Mutex<State>,
}

/// Short sections, never across an await.
struct State {
    portals: Vec<Portal>,
    /// Index of the portal that is tried next.
    next: usize,
    /// The portal that took the last connection.
    current: Portal,
}

impl GroupConnector {
    /// A connector of a session at `own`, without other portals.
    pub(crate) fn new(inner: Arc<dyn Connector>, own: Portal) -> Arc<Self> {
        let state = Mutex::new(State { portals: vec![own.clone()], next: 0, current: own.clone() });
        Arc::new(Self { inner, own, state })
    }

    /// Sets the portals of the group; the session is at its own, so the next attempt starts at the
    /// one after.
    pub(crate) fn set_portals(&self, portals: Vec<Portal>) {
        let mut state = self.lock();
        let own = portals.iter().position(|portal| *portal == self.own).unwrap_or(0);
        state.next = (own + 1) % portals.len().max(1);
        state.portals = portals;
    }

    /// The portal that took the last connection.
    pub(crate) fn current(&self) -> Portal {
        self.lock().current.clone()
    }

    /// The portals in the order of this attempt. A portal to which the target redirected is tried
    /// alone.
    fn attempt(&self, asked: &Portal) -> Vec<Portal> {
        let mut state = self.lock();
        if *asked != self.own || state.portals.is_empty() {
            return vec![asked.clone()];
        }
        let count = state.portals.len();
        let next = state.next % count;
        state.next = (next + 1) % count;
        (0..count).filter_map(|index| state.portals.get((next + index) % count).cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connector for GroupConnector {
    fn connect(&self, portal: &Portal) -> Connecting<'_> {
        let portals = self.attempt(portal);
        Box::pin(async move {
            let mut last = None;
            for portal in portals {
                match self.inner.connect(&portal).await {
                    Ok(stream) => {
                        self.lock().current = portal;
                        return Ok(stream) as io::Result<BoxedStream>;
                    }
                    Err(error) => last = Some(error),
                }
            }
            Err(last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connector that refuses the listed portals, and returns a dead stream for all others.
    struct Refusing(Vec<&'static str>);

    impl Connector for Refusing {
        fn connect(&self, portal: &Portal) -> Connecting<'_> {
            let is_refused = self.0.contains(&portal.host.as_str());
            Box::pin(async move {
                match is_refused {
                    true => Err(io::ErrorKind::ConnectionRefused.into()),
                    false => Ok(Box::new(tokio::io::duplex(1).0) as BoxedStream),
                }
            })
        }
    }

    fn portal(host: &str) -> Portal {
        host.parse().expect("it is a portal")
    }

    #[tokio::test(flavor = "current_thread")]
    async fn each_attempt_begins_one_portal_further() {
        let connector = GroupConnector::new(Arc::new(Refusing(vec!["c"])), portal("b"));
        connector.set_portals(["a", "b", "c"].map(portal).to_vec());
        let mut taken = Vec::new();
        for _ in 0..3 {
            connector.connect(&portal("b")).await.expect("one of them takes it");
            taken.push(connector.current().host);
        }
        assert_eq!(taken, ["a", "a", "b"], "c refused, and a came after it");
        connector.connect(&portal("elsewhere")).await.expect("a redirection");
        assert_eq!(connector.current().host, "elsewhere");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn with_no_portal_left_it_is_the_last_error() {
        let connector = GroupConnector::new(Arc::new(Refusing(vec!["a", "b"])), portal("a"));
        connector.set_portals(["a", "b"].map(portal).to_vec());
        let error = connector.connect(&portal("a")).await.err().expect("both refuse");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
