//! How a session gets its connections: one login at a time, and again later when one fails.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::Instant;
use iscsi::pdu::Isid;
use iscsi::url::Portal;

use crate::alarm::{Alarm, within};
use crate::connector::{BoxedStream, Connector};
use crate::limits::{CONNECTIONS_MAX, JOIN_WAIT_MAX, JOIN_WAIT_MIN};
use crate::options::InitiatorOptions;

type Opening = Pin<Box<dyn Future<Output = Option<io::Result<BoxedStream>>> + Send>>;

/// How many connections the session is to have, and the connection that is being opened.
pub(crate) struct Growth {
    pub(crate) options: Arc<InitiatorOptions>,
    connector: Arc<dyn Connector>,
    pub(crate) isid: Isid,
    pub(crate) portal: Portal,
    /// Connections or pairs that the user wants; may change at any time.
    wanted: Arc<AtomicU16>,
    /// TCP connections that the target agreed to.
    agreed: u16,
    /// Limit of connections or pairs: what the target agreed to, lowered when it refuses more.
    allowed: u16,
    /// Whether connections are to be pairs.
    pub(crate) is_splitting: bool,
    opening: Option<(Opening, Option<u16>)>,
    next_cid: u16,
    not_before: Option<Instant>,
    wait: Duration,
    alarm: Alarm,
}

/// A connection that is open and may log in.
pub(crate) struct Opened {
    pub(crate) stream: BoxedStream,
    pub(crate) cid: u16,
    pub(crate) answers_for: Option<u16>,
}

impl Growth {
    pub(crate) fn new(
        options: Arc<InitiatorOptions>,
        connector: Arc<dyn Connector>,
        isid: Isid,
        portal: Portal,
        wanted: Arc<AtomicU16>,
    ) -> Self {
        Self {
            options,
            connector,
            isid,
            portal,
            wanted,
            agreed: 1,
            allowed: 1,
            is_splitting: false,
            opening: None,
            next_cid: 1,
            not_before: None,
            wait: JOIN_WAIT_MIN,
            alarm: Alarm::default(),
        }
    }

    /// Notes what a new session agreed on.
    pub(crate) fn set_allowed(&mut self, connections: u16, may_split: bool) {
        self.agreed = connections;
        self.is_splitting = self.options.split && may_split;
        self.allowed = if self.is_splitting { connections / 2 } else { connections };
    }

    /// Connections or pairs that the session is to have now.
    pub(crate) fn target_count(&self) -> usize {
        let wanted = self.wanted.load(Ordering::Relaxed);
        usize::from(wanted.min(self.allowed).clamp(1, CONNECTIONS_MAX))
    }

    /// Whether no connection is being opened, and the wait after a failure is over.
    pub(crate) fn is_idle(&mut self, context: &mut Context<'_>) -> bool {
        let Some(not_before) = self.not_before else { return self.opening.is_none() };
        let is_over = self.alarm.poll(context, &*self.options.clock, self.options.clock.now(), Some(not_before));
        is_over && self.opening.is_none()
    }

    /// Opens a connection, as the response half of `answers_for` if that is given.
    pub(crate) fn open(&mut self, answers_for: Option<u16>) {
        let (connector, portal) = (Arc::clone(&self.connector), self.portal.clone());
        let (clock, limit) = (Arc::clone(&self.options.clock), self.options.connect_timeout);
        let opening = async move { within(&clock, limit, connector.connect(&portal)).await };
        self.opening = Some((Box::pin(opening), answers_for));
    }

    /// The connection that was being opened, once it is open, with a CID that is not `is_taken`: a
    /// login with a CID in use would end the connection that has it.
    pub(crate) fn poll_opened(&mut self, context: &mut Context<'_>, is_taken: impl Fn(u16) -> bool) -> Option<Opened> {
        let (opening, answers_for) = self.opening.as_mut()?;
        let Poll::Ready(opened) = opening.as_mut().poll(context) else { return None };
        let answers_for = *answers_for;
        self.opening = None;
        match opened {
            Some(Ok(stream)) => {
                // Zero belongs to the leading connection, even after that is lost.
                let after = |cid: u16| cid.checked_add(1).unwrap_or(1);
                let mut cid = self.next_cid;
                while is_taken(cid) {
                    cid = after(cid);
                }
                self.next_cid = after(cid);
                Some(Opened { stream, cid, answers_for })
            }
            Some(Err(error)) => {
                self.note_failure(&error.to_string());
                None
            }
            None => {
                self.note_failure("no connection within the time allowed");
                None
            }
        }
    }

    /// Notes that a connection could not be made. The session goes on with those it has.
    pub(crate) fn note_failure(&mut self, why: &str) {
        tracing::warn!(why, portal = %self.portal, wait = ?self.wait, "one more connection could not be made; it is \
                                                                       tried again");
        self.not_before = Some(self.options.clock.now() + self.wait);
        self.wait = (self.wait * 2).min(JOIN_WAIT_MAX);
    }

    /// Notes that a connection was made.
    pub(crate) fn note_success(&mut self) {
        self.not_before = None;
        self.wait = JOIN_WAIT_MIN;
    }

    /// Notes that the target refuses further splitting: `pairs` connections are split, the others
    /// are whole.
    pub(crate) fn stop_splitting(&mut self, pairs: usize) {
        self.is_splitting = false;
        self.allowed = self.agreed.saturating_sub(u16::try_from(pairs).unwrap_or(u16::MAX)).max(1);
    }

    /// Notes that the target takes no more than `count` connections or pairs.
    pub(crate) fn settle_for(&mut self, count: usize) {
        tracing::info!(count, portal = %self.portal, "the target takes no more connections");
        self.allowed = u16::try_from(count).unwrap_or(u16::MAX).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::TcpConnector;

    fn growth(wanted: u16) -> Growth {
        let portal = Portal { host: "127.0.0.1".to_owned(), port: 1 };
        let options = InitiatorOptions { split: true, ..InitiatorOptions::new(portal.clone(), "iqn.a", 0) };
        let isid = Isid::random_format(1, 1);
        Growth::new(Arc::new(options), Arc::new(TcpConnector), isid, portal, Arc::new(AtomicU16::new(wanted)))
    }

    #[test]
    fn a_session_that_may_not_be_split_after_all_has_all_its_connections() {
        let mut growth = growth(8);
        growth.set_allowed(8, true);
        assert_eq!(growth.target_count(), 4, "pairs");
        growth.stop_splitting(0);
        assert_eq!(growth.target_count(), 8);
        growth.stop_splitting(3);
        assert_eq!(growth.target_count(), 5, "three pairs are there, and count twice at the target");
    }
}
