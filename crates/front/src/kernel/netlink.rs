//! Generic netlink with the kernel's NBD client (`linux/nbd-netlink.h`, `linux/genetlink.h`): one request, one answer.
//!
//! ```text
//! nlmsghdr: length, type, flags, sequence, port │ genlmsghdr: command, version │ attributes: length, type, bytes, padded to 4
//! ```

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use block::Geometry;
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
/// Bytes after the header of an error message: its number, negative, or zero.
const ERROR_BYTES: usize = 4;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const NBD_CMD_CONNECT: u8 = 1;
const NBD_CMD_DISCONNECT: u8 = 2;
const NBD_CMD_RECONFIGURE: u8 = 3;
const NBD_ATTR_INDEX: u16 = 1;
const NBD_ATTR_SIZE_BYTES: u16 = 2;
const NBD_ATTR_BLOCK_SIZE_BYTES: u16 = 3;
const NBD_ATTR_SERVER_FLAGS: u16 = 5;
const NBD_ATTR_SOCKETS: u16 = 7;
const NBD_ATTR_DEAD_CONN_TIMEOUT: u16 = 8;
const NBD_ATTR_BACKEND_IDENTIFIER: u16 = 10;
const NBD_SOCK_ITEM: u16 = 1;
const NBD_SOCK_FD: u16 = 1;
/// `NLA_F_NESTED`: an attribute of attributes.
const NESTED: u16 = 1 << 15;

/// The message family of the kernel's NBD client.
pub(super) struct Family(u16);

/// The properties of a disk in a request to the kernel.
pub(super) struct Change<'a> {
    pub(super) index: u32,
    pub(super) socket: Option<RawFd>,
    pub(super) geometry: Option<Geometry>,
    pub(super) flags: u16,
    /// The backend that the disk belongs to; not sent when empty.
    pub(super) backend: &'a str,
}

impl Change<'_> {
    fn attributes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        attribute(&mut out, NBD_ATTR_INDEX, &self.index.to_ne_bytes());
        if let Some(geometry) = &self.geometry {
            attribute(&mut out, NBD_ATTR_SIZE_BYTES, &geometry.size_bytes.to_ne_bytes());
            let block_bytes = u64::from(geometry.logical_block_bytes);
            attribute(&mut out, NBD_ATTR_BLOCK_SIZE_BYTES, &block_bytes.to_ne_bytes());
        }
        if let Some(socket) = self.socket {
            let (mut number, mut item) = (Vec::new(), Vec::new());
            attribute(&mut number, NBD_SOCK_FD, &socket.to_ne_bytes());
            attribute(&mut item, NBD_SOCK_ITEM | NESTED, &number);
            attribute(&mut out, NBD_ATTR_SOCKETS | NESTED, &item);
        }
        if !self.backend.is_empty() {
            attribute(&mut out, NBD_ATTR_BACKEND_IDENTIFIER, &[self.backend.as_bytes(), &[0]].concat());
        }
        out
    }

    /// What is said besides when it becomes a disk.
    fn first_attributes(&self, lost_time_max: Duration) -> Vec<u8> {
        let mut out = self.attributes();
        attribute(&mut out, NBD_ATTR_SERVER_FLAGS, &u64::from(self.flags).to_ne_bytes());
        attribute(&mut out, NBD_ATTR_DEAD_CONN_TIMEOUT, &lost_time_max.as_secs().to_ne_bytes());
        out
    }
}

impl Family {
    /// # Errors
    /// `NotFound` on a kernel without an NBD client.
    pub(super) fn find() -> io::Result<Self> {
        let mut name = Vec::new();
        attribute(&mut name, CTRL_ATTR_FAMILY_NAME, b"nbd\0");
        let answer = exchange(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name)?;
        let id = value(&answer, CTRL_ATTR_FAMILY_ID).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        id.map(Self).ok_or_else(|| io::Error::other("the kernel does not say how its NBD client is reached"))
    }

    /// Connects the disk; its requests wait for this long when its socket is closed.
    pub(super) fn connect(&self, change: &Change<'_>, lost_time_max: Duration) -> io::Result<()> {
        exchange(self.0, NBD_CMD_CONNECT, &change.first_attributes(lost_time_max)).map(drop)
    }

    /// Gives the disk a socket in place of a closed one, or another size.
    pub(super) fn reconfigure(&self, change: &Change<'_>) -> io::Result<()> {
        exchange(self.0, NBD_CMD_RECONFIGURE, &change.attributes()).map(drop)
    }

    pub(super) fn disconnect(&self, index: u32) -> io::Result<()> {
        let mut attributes = Vec::new();
        attribute(&mut attributes, NBD_ATTR_INDEX, &index.to_ne_bytes());
        exchange(self.0, NBD_CMD_DISCONNECT, &attributes).map(drop)
    }
}

fn attribute(out: &mut Vec<u8>, kind: u16, bytes: &[u8]) {
    let length = u16::try_from(4 + bytes.len()).expect("attributes are short");
    out.extend(length.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The value of an attribute in a list.
fn value(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        let kind = u16_at(attributes, 2)?;
        let bytes = attributes.get(4..length)?;
        if kind == wanted {
            return Some(bytes);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn message(family: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + GENERIC_HEADER_BYTES + attributes.len()).expect("attributes are short");
    let mut out = Vec::new();
    out.extend(length.to_ne_bytes());
    out.extend(family.to_ne_bytes());
    out.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    // Sequence and port: one request a socket, and the kernel fills in the port.
    out.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    out.extend([command, 1, 0, 0]);
    out.extend(attributes);
    out
}

/// Sends a request. Returns the attributes of the answer, if it has any.
fn exchange(family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&message(family, command, attributes), 0)?;
    let mut answer = Vec::new();
    loop {
        let (received, _) = socket.recv_from_full()?;
        if let Some(ended) = take_in(&received, &mut answer) {
            return ended.map(|()| answer);
        }
    }
}

/// Parses received messages: collects the attributes of an answer, and returns its end, if that has
/// arrived.
fn take_in(mut received: &[u8], answer: &mut Vec<u8>) -> Option<io::Result<()>> {
    while let Some((length, kind)) = header(received) {
        let Some(body) = received.get(HEADER_BYTES..length) else { break };
        if kind == NLMSG_ERROR {
            let error = body.get(..ERROR_BYTES)?.try_into().ok().map(i32::from_ne_bytes)?;
            return Some(if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error.saturating_neg())) });
        }
        answer.extend(body.get(GENERIC_HEADER_BYTES..).unwrap_or_default());
        received = received.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// Length and type of the first message.
fn header(bytes: &[u8]) -> Option<(usize, u16)> {
    let length = bytes.get(..4)?.try_into().ok().map(u32::from_ne_bytes)?;
    Some((usize::try_from(length).ok().filter(|length| *length >= HEADER_BYTES)?, u16_at(bytes, 4)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LOST_TIME_MAX;

    #[test]
    fn what_is_said_of_a_disk_is_said_as_the_kernel_reads_it() {
        let change = Change { index: 3, socket: Some(9), geometry: None, flags: 0, backend: "ab" };
        #[rustfmt::skip]
        let expected = [
            8, 0, 1, 0, 3, 0, 0, 0,
            16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 9, 0, 0, 0,
            7, 0, 10, 0, b'a', b'b', 0, 0,
        ];
        assert_eq!(change.attributes(), expected);
        assert_eq!(value(&expected, NBD_ATTR_BACKEND_IDENTIFIER), Some(&b"ab\0"[..]));
        assert_eq!(value(&expected, 99), None);
        assert_eq!(message(0x21, 3, &expected)[..8], [52, 0, 0, 0, 0x21, 0, 5, 0]);
    }

    /// Seconds, which the kernel counts itself: too long to be waited for here.
    #[test]
    fn the_kernel_is_told_to_keep_requests_for_five_minutes() {
        let change = Change { index: 3, socket: None, geometry: None, flags: 0, backend: "" };
        let attributes = change.first_attributes(LOST_TIME_MAX);
        assert_eq!(value(&attributes, NBD_ATTR_DEAD_CONN_TIMEOUT), Some(&300_u64.to_ne_bytes()[..]));
    }

    #[test]
    fn an_answer_ends_with_an_error_or_with_none() {
        let error = |number: i32| [&[20, 0, 0, 0, 2, 0, 0, 0][..], &[0; 8], &number.to_ne_bytes()].concat();
        let mut answer = Vec::new();
        let data = [&[24, 0, 0, 0, 0x10, 0, 0, 0][..], &[0; 8], &[1, 2, 0, 0], &[8, 0, 1, 0]].concat();
        let taken = take_in(&[data.clone(), error(0)].concat(), &mut answer);
        assert!(matches!(taken, Some(Ok(()))));
        assert_eq!(answer, [8, 0, 1, 0]);
        let refused = take_in(&error(-16), &mut answer).unwrap().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(16));
        for cut in 0..data.len() {
            assert!(take_in(&data[..cut], &mut Vec::new()).is_none(), "half of it is nothing");
        }
    }

    /// The kernel reports that the family does not exist, or its number.
    #[test]
    fn the_kernel_answers() {
        match Family::find() {
            Ok(Family(number)) => assert!(number > GENL_ID_CTRL),
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }
}
