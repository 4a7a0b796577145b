//! A shared unit on the wire: hosts made of framing and a script register, are called back and
//! answer, beside stock initiators. The test turns the clock of the unit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::clock::{Clock, VirtualClock};
use base::limits::REFUSALS_LOGGED_MAX;
use block::Identity;
use block::memory::MemoryDevice;
use iscsi::limits::MESSAGE_BYTES_HIGH;
use iscsi::pdu::*;
use iscsi::sharing::SHARING;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap, SharingOptions};
use scsi::Cdb;
use scsi::sharing::action_out;
use scsi::sharing::message::{ASYNC_EVENT, ASYNC_VCODE};
use scsi::sharing::{CallbackAnswer, Lock, Message, MessageBody, Mode, Parameters, Resource};
use target::{Quota, Target, TargetServer, TargetServerOptions};
use tokio::io::DuplexStream;

#[path = "../../cache/tests/common/lines.rs"]
mod lines;
mod support;
use lines::Lines;
use support::*;

const FENCED: (u8, u8, u8) = (0xb, 0x80, 0);

/// A target of one unit that hosts may share.
fn shared_target(clock: &VirtualClock) -> Target {
    let options = LogicalUnitOptions {
        sharing: Some(SharingOptions::default()),
        clock: Some(Arc::new(clock.clone())),
        ..LogicalUnitOptions::default()
    };
    let unit = LogicalUnit::new(Arc::new(MemoryDevice::new(64 << 20, Identity::default())), options);
    tokio::spawn(unit.run());
    let luns = LunMap::new();
    luns.insert(0, unit);
    Target::new(NAME, luns)
}

/// A server of one unit that hosts may share, and the unit's clock.
fn shared(quota: Quota) -> (TargetServer, VirtualClock) {
    let clock = VirtualClock::new();
    let options = TargetServerOptions { quota, ..TargetServerOptions::default() };
    (TargetServer::new(vec![shared_target(&clock)], options), clock)
}

/// What the target sent: the end of a command, or a message.
#[derive(Debug, PartialEq)]
enum Sent {
    /// Tag, key, ASC, ASCQ; zeroes for GOOD.
    End(u32, (u8, u8, u8)),
    Data(u32, Vec<u8>),
    Told(Message),
}

struct Host {
    wire: Client<DuplexStream>,
    client: u64,
    taken: u64,
    tag: u32,
}

impl Host {
    async fn stock(server: &TargetServer, isid: u32) -> Self {
        Self::log_in(server, isid, &[("TargetName", NAME)]).await
    }

    /// A host that negotiated the key.
    async fn of_key(server: &TargetServer, isid: u32) -> Self {
        Self::log_in(server, isid, &[("TargetName", NAME), (SHARING, "7,1")]).await
    }

    async fn log_in(server: &TargetServer, isid: u32, keys: &[(&str, &str)]) -> Self {
        let (mut wire, _) = connect(server);
        assert_eq!(wire.try_log_in(isid, 0, keys).await.status, LoginStatus::SUCCESS);
        wire.settle().await;
        Self { wire, client: 0, taken: 0, tag: 100 }
    }

    /// A host that is a client.
    async fn registered(server: &TargetServer, isid: u32) -> Self {
        let mut host = Self::of_key(server, isid).await;
        host.register().await;
        host
    }

    async fn register(&mut self) {
        let key = [self.wire.initiator_name.len() as u8; 16];
        let key = self.key_of(key);
        let tag = self.order(&Parameters::Register { key, registers_reads: true, before: None }).await;
        for _ in 0..2 {
            match self.next().await {
                Sent::End(of, sense) => assert_eq!((of, sense), (tag, (0, 0, 0))),
                Sent::Told(message) => {
                    assert!(matches!(message.body, MessageBody::Registered { .. }), "{message:?}");
                    (self.client, self.taken) = (message.client, message.number);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Another path of a client.
    async fn join(&mut self, first: &Self) {
        let key = first.key_of([HOST.len() as u8; 16]);
        let list = Parameters::Register { key, registers_reads: true, before: None }.emit();
        let (service_action, parameter_list_length) = (action_out::REGISTER, list.len() as u32);
        let cdb = Cdb::SharingOut { service_action, client: first.client, parameter_list_length };
        let tag = self.send(&cdb, Some(list), parameter_list_length).await;
        while self.next().await != Sent::End(tag, (0, 0, 0)) {}
        self.client = first.client;
    }

    fn key_of(&self, mut key: [u8; 16]) -> [u8; 16] {
        key[0] = self.wire.cid as u8;
        key
    }

    async fn next(&mut self) -> Sent {
        let mut pdu = self.wire.receive().await.expect("the target goes on");
        // On a busy machine this test is slower than the target's keepalive for a silent initiator.
        while matches!(pdu.header.bhs, Ok(Bhs::NopIn(_))) {
            pdu = self.wire.receive().await.expect("the target goes on");
        }
        let bytes = pdu.data.bytes().to_vec();
        match pdu.header.bhs.expect("it sends valid headers") {
            Bhs::ScsiResponse(response) => {
                let sense = if bytes.is_empty() { (0, 0, 0) } else { (bytes[4] & 0x0f, bytes[14], bytes[15]) };
                Sent::End(response.initiator_task_tag.get(), sense)
            }
            Bhs::DataIn(data) => Sent::Data(data.initiator_task_tag.get(), bytes),
            Bhs::AsyncMessage(message) => {
                let parameters = [0; 3];
                assert_eq!(message.event, AsyncEvent::Vendor { event: ASYNC_EVENT, code: ASYNC_VCODE, parameters });
                assert_eq!((message.lun, &bytes[..2]), (0, &[0, 0][..]), "no sense data, and no LUN in the header");
                Sent::Told(Message::parse(&bytes[2..]).expect("it says something"))
            }
            other => panic!("{other:?}"),
        }
    }

    async fn good(&mut self, tag: u32) {
        assert_eq!(self.next().await, Sent::End(tag, (0, 0, 0)));
    }

    /// Waits for the end of a command, past messages.
    async fn ends(&mut self, tag: u32) {
        loop {
            match self.next().await {
                Sent::Told(message) => self.taken = message.number,
                end => break assert_eq!(end, Sent::End(tag, (0, 0, 0))),
            }
        }
    }

    async fn told(&mut self) -> MessageBody {
        match self.next().await {
            Sent::Told(message) => {
                assert_eq!((message.client, message.number), (self.client, self.taken + 1), "in order");
                self.taken += 1;
                message.body
            }
            other => panic!("{other:?}"),
        }
    }

    async fn purge(&mut self) -> u64 {
        match self.told().await {
            MessageBody::Purge { callback, .. } => callback,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that no message has come.
    async fn hears_nothing(&mut self) {
        let_things_happen().await;
        let next = tokio::time::timeout(Duration::ZERO, self.next()).await;
        assert!(next.is_err(), "{next:?}");
    }

    async fn send(&mut self, cdb: &Cdb, data: Option<Vec<u8>>, expected: u32) -> u32 {
        self.tag += 1;
        self.wire.command(self.tag, &cdb.emit(), data, expected).await;
        self.tag
    }

    async fn write(&mut self, lba: u32, byte: u8) -> u32 {
        self.tag += 1;
        self.wire.command(self.tag, &cdb10(0x2a, lba, 1), Some(vec![byte; 512]), 512).await;
        self.tag
    }

    /// A write of one block whose data waits to be asked for.
    async fn announce(&mut self, lba: u32) -> u32 {
        self.tag += 1;
        self.wire.command(self.tag, &cdb10(0x2a, lba, 1), Some(Vec::new()), 512).await;
        self.tag
    }

    /// Sends the data of that write, which is asked for.
    async fn send_what_is_asked(&mut self, write: u32, byte: u8) {
        let Bhs::ReadyToTransfer(r2t) = self.wire.receive_bhs().await else { panic!("its data is asked for") };
        assert_eq!((r2t.initiator_task_tag, r2t.desired_data_transfer_length), (tag(write), 512));
        let data = DataOut {
            is_final: true,
            lun: 0,
            initiator_task_tag: tag(write),
            target_transfer_tag: Some(r2t.target_transfer_tag),
            exp_stat_sn: self.wire.exp_stat_sn,
            data_sn: base::serial::Serial32(0),
            buffer_offset: 0,
        };
        self.wire.send(&data, vec![byte; 512]).await;
    }

    async fn read(&mut self, lba: u32, blocks: u16) -> u32 {
        self.tag += 1;
        self.wire.command(self.tag, &cdb10(0x28, lba, blocks), None, u32::from(blocks) * 512).await;
        self.tag
    }

    async fn has_read(&mut self, lba: u32) -> Vec<u8> {
        let tag = self.read(lba, 1).await;
        match self.next().await {
            Sent::Data(of, bytes) if of == tag => bytes,
            other => panic!("{other:?}"),
        }
    }

    fn cdb(&self, parameters: &Parameters) -> Cdb {
        let client = if matches!(parameters, Parameters::Register { .. }) { 0 } else { self.client };
        let parameter_list_length = parameters.emit().len() as u32;
        Cdb::SharingOut { service_action: parameters.action(), client, parameter_list_length }
    }

    async fn order(&mut self, parameters: &Parameters) -> u32 {
        let (cdb, list) = (self.cdb(parameters), parameters.emit());
        let expected = list.len() as u32;
        self.send(&cdb, Some(list), expected).await
    }

    /// As an immediate command, which bypasses the window.
    async fn order_at_once(&mut self, parameters: &Parameters) -> u32 {
        self.tag += 1;
        let list = parameters.emit();
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&self.cdb(parameters).emit());
        let command = ScsiCommand {
            is_immediate: true,
            is_final: true,
            reads: false,
            writes: true,
            attribute: TaskAttribute::Simple,
            lun: 0,
            initiator_task_tag: tag(self.tag),
            expected_data_transfer_length: list.len() as u32,
            cmd_sn: self.wire.cmd_sn,
            exp_stat_sn: self.wire.exp_stat_sn,
            cdb,
        };
        self.wire.send(&command, list).await;
        self.tag
    }

    async fn acknowledge(&mut self, callback: u64) -> u32 {
        let answer = CallbackAnswer::Done;
        self.order_at_once(&Parameters::Acknowledge { taken: self.taken, callback, answer }).await
    }

    async fn renew(&mut self) -> Sent {
        self.order_at_once(&Parameters::Renew { taken: self.taken }).await;
        self.next().await
    }
}

#[tokio::test]
async fn a_stock_initiators_write_waits_until_a_client_has_dropped_its_copy() {
    let (server, _) = shared(Quota::default());
    let (mut host, mut stock) = (Host::registered(&server, 1).await, Host::stock(&server, 2).await);
    assert_eq!(host.has_read(8).await, [0; 512]);
    let write = stock.write(8, 0x5a).await;
    let callback = match host.told().await {
        MessageBody::Purge { callback, first_block: 1, block_count: 1, deadline_ms: 10_000 } => callback,
        other => panic!("{other:?}"),
    };
    stock.hears_nothing().await;
    let answer = host.acknowledge(callback).await;
    host.good(answer).await;
    stock.good(write).await;
    assert_eq!(host.has_read(8).await, [0x5a; 512]);
}

#[tokio::test]
async fn a_session_without_the_key_has_no_commands_of_sharing() {
    let (server, _) = shared(Quota::default());
    let mut stock = Host::stock(&server, 1).await;
    let register = Parameters::Register { key: [1; 16], registers_reads: true, before: None };
    let tag = stock.order(&register).await;
    assert_eq!(stock.next().await, Sent::End(tag, (0x5, 0x20, 0)));
}

/// The paper's rule: the R2T is sent when no other host has a copy any more, and no buffer is held
/// until then.
#[tokio::test]
async fn data_is_asked_for_when_the_copies_are_dropped() {
    let (server, _) = shared(Quota::default());
    let mut host = Host::registered(&server, 1).await;
    let solicited = [("TargetName", NAME), ("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let mut stock = Host::log_in(&server, 2, &solicited).await;
    let mut other = Host::stock(&server, 3).await;
    host.has_read(0).await;
    let write = stock.announce(0).await;
    let callback = host.purge().await;
    stock.hears_nothing().await;
    let answer = host.acknowledge(callback).await;
    host.good(answer).await;
    assert_eq!(host.has_read(0).await, [0; 512], "who is slow to send keeps nobody out");
    stock.send_what_is_asked(write, 7).await;
    let callback = host.purge().await;
    stock.hears_nothing().await;
    let answer = host.acknowledge(callback).await;
    host.good(answer).await;
    stock.good(write).await;
    assert_eq!(host.has_read(0).await, [7; 512]);
    let given_up = stock.announce(0).await;
    let callback = host.purge().await;
    let behind = other.write(0, 9).await;
    let abort = TaskManagementRequest {
        is_immediate: true,
        function: Ok(TaskManagementFunction::AbortTask),
        lun: 0,
        initiator_task_tag: tag(9000),
        referenced_task_tag: Some(tag(given_up)),
        cmd_sn: stock.wire.cmd_sn,
        exp_stat_sn: stock.wire.exp_stat_sn,
        ref_cmd_sn: base::serial::Serial32(stock.wire.cmd_sn.0.wrapping_sub(1)),
        exp_data_sn: base::serial::Serial32(0),
    };
    stock.wire.send(&abort, Vec::new()).await;
    assert!(matches!(stock.wire.receive_bhs().await, Bhs::TaskManagementResponse(_)));
    // It has left the gate; the next one waits for the same callbacks, and sends no others.
    host.hears_nothing().await;
    let answer = host.acknowledge(callback).await;
    host.good(answer).await;
    other.good(behind).await;
    stock.hears_nothing().await;
}

/// With the unit go its clients' answers and its deadlines: nothing would ever free what waits for them.
#[tokio::test]
async fn what_waits_at_the_gate_of_a_unit_that_goes_is_answered_at_once() {
    for (comes, expected) in [(false, (5, 0x25, 0)), (true, (6, 0x29, 0))] {
        let (server, clock) = shared(Quota::default());
        let mut host = Host::registered(&server, 1).await;
        let solicited = [("TargetName", NAME), ("InitialR2T", "Yes"), ("ImmediateData", "No")];
        let mut announcing = Host::log_in(&server, 2, &solicited).await;
        let mut stock = Host::stock(&server, 3).await;
        host.has_read(0).await;
        host.has_read(8).await;
        let announced = announcing.announce(0).await;
        host.purge().await;
        let write = stock.write(8, 7).await;
        host.purge().await;
        let read = host.read(8, 1).await;
        host.hears_nothing().await;
        stock.hears_nothing().await;
        announcing.hears_nothing().await;
        let left = if comes { shared_target(&clock) } else { Target::new(NAME, LunMap::new()) };
        server.set_targets(vec![left]);
        assert_eq!(stock.next().await, Sent::End(write, expected));
        assert_eq!(host.next().await, Sent::End(read, expected));
        announcing.send_what_is_asked(announced, 7).await;
        assert_eq!(announcing.next().await, Sent::End(announced, expected));
    }
}

/// Numbers of clients are few, and another unit may have given the same one to another host.
#[tokio::test]
async fn nobody_is_fenced_at_the_unit_that_came_in_the_place_of_another() {
    let (server, clock) = shared(Quota::default());
    let mut host = Host::registered(&server, 1).await;
    let mut other = Host::of_key(&server, 2).await;
    other.wire.cid = 9;
    server.set_targets(vec![shared_target(&clock)]);
    other.register().await;
    assert_eq!(other.client, host.client);
    let fence = host.order(&Parameters::Fence { client: host.client }).await;
    assert_eq!(host.next().await, Sent::End(fence, (6, 0x29, 0)));
    assert!(matches!(other.renew().await, Sent::End(_, (0, 0, 0))));
}

/// Race 1, on the wire.
#[tokio::test]
async fn a_client_answers_while_its_own_read_waits() {
    let (server, _) = shared(Quota::default());
    let (mut host, mut stock) = (Host::registered(&server, 1).await, Host::stock(&server, 2).await);
    host.has_read(0).await;
    let write = stock.write(0, 7).await;
    let callback = host.purge().await;
    let read = host.read(0, 1).await;
    host.hears_nothing().await;
    let answer = host.acknowledge(callback).await;
    host.good(answer).await;
    assert_eq!(host.next().await, Sent::Data(read, vec![7; 512]));
    stock.good(write).await;
}

/// Race 2: a client's writes wait for another client and fill its window, and a third initiator
/// waits for its answer.
#[tokio::test]
async fn an_answer_passes_a_window_full_of_writes_that_wait() {
    let (server, _) = shared(Quota::default());
    let mut writer = Host::registered(&server, 1).await;
    let mut reader = Host::of_key(&server, 2).await;
    reader.wire.cid = 9;
    reader.register().await;
    let mut stock = Host::stock(&server, 3).await;
    writer.has_read(8000).await;
    reader.has_read(0).await;
    let first = writer.tag + 1;
    for _ in 0..128 {
        writer.write(0, 1).await;
    }
    let asked = reader.purge().await;
    let write = stock.write(8000, 2).await;
    let callback = writer.purge().await;
    let answer = writer.acknowledge(callback).await;
    writer.good(answer).await;
    stock.good(write).await;
    assert!(matches!(writer.renew().await, Sent::End(_, (0, 0, 0))));
    writer.hears_nothing().await;
    let answer = reader.acknowledge(asked).await;
    reader.good(answer).await;
    for tag in first..first + 128 {
        writer.good(tag).await;
    }
}

/// A client's reads may use all data-in room of its session, and wait for the client's own answer.
#[tokio::test]
async fn an_answer_passes_reads_that_wait_with_all_the_room_there_is() {
    let quota = Quota { session_data_in_bytes: 64 << 10, ..Quota::default() };
    let (server, _) = shared(quota);
    let (mut host, mut stock) = (Host::registered(&server, 1).await, Host::stock(&server, 2).await);
    host.has_read(0).await;
    let write = stock.write(0, 7).await;
    let callback = host.purge().await;
    let first = host.tag + 1;
    for _ in 0..4 {
        host.read(0, 64).await;
    }
    host.hears_nothing().await;
    let answer = host.acknowledge(callback).await;
    host.good(answer).await;
    stock.good(write).await;
    // In any order: their turns decide which finds room first.
    let mut waiting: BTreeSet<_> = (first..first + 4).collect();
    while !waiting.is_empty() {
        let sent = host.next().await;
        let Sent::Data(tag, bytes) = &sent else { panic!("{sent:?}") };
        assert!(bytes[..512] == [7; 512] && waiting.remove(tag), "{tag}");
    }
}

/// Advances the clock in small steps, while the target runs.
async fn pass(clock: &VirtualClock, time: Duration) {
    let end = clock.now() + time;
    while clock.now() < end {
        clock.advance_to((clock.now() + Duration::from_secs(1)).min(end));
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }
}

/// Race 7, on the wire: writes in the socket of a frozen host.
#[tokio::test]
async fn a_silent_client_is_fenced_and_none_of_its_writes_lands() {
    let (server, clock) = shared(Quota::default());
    let (mut host, mut stock) = (Host::registered(&server, 1).await, Host::stock(&server, 2).await);
    host.has_read(0).await;
    let write = stock.write(0, 7).await;
    host.purge().await;
    pass(&clock, Duration::from_secs(10) - Duration::from_millis(1)).await;
    stock.hears_nothing().await;
    clock.advance(Duration::from_millis(1));
    stock.good(write).await;
    let late = host.write(16, 9).await;
    assert_eq!(host.next().await, Sent::End(late, FENCED));
    assert!(matches!(host.renew().await, Sent::End(_, FENCED)));
    assert_eq!(stock.has_read(16).await, [0; 512]);
    host.wire.cid = 5;
    host.register().await;
    assert_eq!(host.has_read(0).await, [7; 512]);
}

/// A host may register and be fenced as often as it likes.
#[tokio::test]
async fn clients_that_are_fenced_are_a_few_lines() {
    let (server, clock) = shared(Quota::default());
    let mut hosts = Vec::new();
    for isid in 0..2 * REFUSALS_LOGGED_MAX {
        let mut host = Host::of_key(&server, isid).await;
        host.wire.cid = isid as u16;
        host.register().await;
        hosts.push(host);
    }
    let lines = Lines::default();
    let _guard = lines.listen();
    pass(&clock, Duration::from_secs(60)).await;
    for host in &mut hosts {
        assert!(matches!(host.renew().await, Sent::End(_, FENCED)));
    }
    assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize);
}

#[tokio::test]
async fn messages_that_were_lost_with_a_session_come_again() {
    let (server, _) = shared(Quota::default());
    let (mut host, mut stock) = (Host::registered(&server, 1).await, Host::stock(&server, 2).await);
    host.has_read(0).await;
    let write = stock.write(0, 7).await;
    let (client, taken) = (host.client, host.taken);
    host.purge().await;
    drop(host);
    let_things_happen().await;
    let mut again = Host::of_key(&server, 1).await;
    (again.client, again.taken) = (client, taken);
    let key = again.key_of([HOST.len() as u8; 16]);
    let tag = again.order(&Parameters::Register { key, registers_reads: true, before: None }).await;
    let mut callback = None;
    // It has never acknowledged the first.
    for _ in 0..4 {
        match again.next().await {
            Sent::End(of, sense) => assert_eq!((of, sense), (tag, (0, 0, 0))),
            Sent::Told(Message { client: of, number, body: MessageBody::Purge { callback: asked, .. }, .. }) => {
                assert_eq!((of, number), (client, taken + 1), "with its number");
                callback = Some(asked);
            }
            Sent::Told(message) => assert!(matches!(message.body, MessageBody::Registered { .. })),
            other => panic!("{other:?}"),
        }
    }
    let answer = again.acknowledge(callback.expect("it came again")).await;
    again.good(answer).await;
    stock.good(write).await;
}

#[tokio::test]
async fn a_lock_is_granted_by_a_message_when_its_holder_gives_it_up() {
    let (server, clock) = shared(Quota::default());
    let mut first = Host::registered(&server, 1).await;
    let mut second = Host::of_key(&server, 2).await;
    second.wire.cid = 9;
    second.register().await;
    let wanted = Lock { resource: Resource::Metadata(3), mode: Some(Mode::MetadataExclusive), grant: 0 };
    let lock = Parameters::Lock { request: 1, transaction: 0, is_reclaim: false, locks: vec![wanted] };
    first.order(&lock).await;
    let mut granted = None;
    for _ in 0..2 {
        if let Sent::Told(Message { body: MessageBody::Granted { locks, .. }, .. }) = first.next().await {
            granted = locks.first().copied();
            first.taken += 1;
        }
    }
    let granted = granted.expect("nobody holds it");
    second.order(&lock).await;
    for _ in 0..2 {
        if let Sent::Told(message) = second.next().await {
            assert_eq!(message.body, MessageBody::Queued { request: 1 });
            second.taken += 1;
        }
    }
    clock.advance(Duration::from_millis(20));
    match first.told().await {
        MessageBody::CallBack { callback, lock, .. } => {
            assert_eq!(lock, Lock { mode: None, ..granted });
            let answer = first.acknowledge(callback).await;
            first.good(answer).await;
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(second.told().await, MessageBody::Granted { request: 1, .. }));
}

/// 64 locks that nobody else wants.
fn many_locks(request: u64) -> Parameters {
    let lock = |block| Lock { resource: Resource::Metadata(block), mode: Some(Mode::MetadataExclusive), grant: 0 };
    Parameters::Lock { request, transaction: 0, is_reclaim: false, locks: (0..64).map(lock).collect() }
}

/// The outbox is empty where one path acknowledges, so it bounds nothing of what another one leaves.
#[tokio::test]
async fn what_a_path_leaves_is_bounded_and_the_newest_comes_when_it_takes_messages_again() {
    const REQUESTS: u64 = 1000;
    const MESSAGE_BYTES: usize = 64 * 24;
    const IN_THE_STREAM: usize = 64 << 10;
    let (server, _) = shared(Quota::default());
    let mut host = Host::registered(&server, 1).await;
    let mut silent = Host::of_key(&server, 2).await;
    silent.join(&host).await;
    for request in 1..=REQUESTS {
        let lock = host.order(&many_locks(request)).await;
        let (mut is_answered, mut is_granted) = (false, false);
        while !(is_answered && is_granted) {
            match host.next().await {
                Sent::Told(Message { number, body, .. }) => {
                    host.taken = number;
                    is_granted |= matches!(body, MessageBody::Granted { request: of, .. } if of == request);
                }
                end => {
                    assert_eq!(end, Sent::End(lock, (0, 0, 0)));
                    is_answered = true;
                }
            }
        }
        // The session of the other path has its turn.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        // The last one is not acknowledged: it is what the other path has still to get.
        if request < REQUESTS {
            host.order_at_once(&Parameters::Renew { taken: host.taken }).await;
            host.ends(host.tag).await;
        }
    }
    let mut numbers = Vec::new();
    while numbers.last() != Some(&host.taken) {
        match silent.next().await {
            Sent::Told(message) => numbers.push(message.number),
            other => panic!("{other:?}"),
        }
    }
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert!(numbers.len() * MESSAGE_BYTES < MESSAGE_BYTES_HIGH + 2 * IN_THE_STREAM, "{} messages", numbers.len());
}

/// Registered by one connection of its session, on which nothing arrives any more, a client registers by the other.
#[tokio::test]
async fn what_was_not_taken_comes_first_where_a_client_registers_by_another_connection() {
    let (server, _) = shared(Quota::default());
    let keys = [("TargetName", NAME), (SHARING, "1"), ("MaxConnections", "2")];
    let (mut wire, _) = connect(&server);
    let tsih = wire.try_log_in(1, 0, &keys).await.tsih;
    wire.settle().await;
    let mut lost = Host { wire, client: 0, taken: 0, tag: 100 };
    lost.register().await;
    lost.has_read(0).await;
    let mut stock = Host::stock(&server, 2).await;
    let write = stock.write(0, 7).await;
    let (mut wire, _) = connect(&server);
    (wire.cid, wire.cmd_sn) = (1, lost.wire.cmd_sn);
    assert_eq!(wire.try_log_in(1, tsih, &keys).await.status, LoginStatus::SUCCESS);
    let mut host = Host { wire, client: lost.client, taken: lost.taken, tag: 200 };
    let key = lost.key_of([HOST.len() as u8; 16]);
    let tag = host.order(&Parameters::Register { key, registers_reads: true, before: None }).await;
    let (mut callback, mut numbers) = (None, Vec::new());
    while numbers.len() < 3 {
        match host.next().await {
            Sent::End(of, sense) => assert_eq!((of, sense), (tag, (0, 0, 0))),
            Sent::Told(Message { number, body, .. }) => {
                numbers.push(number);
                if let MessageBody::Purge { callback: asked, .. } = body {
                    callback = Some(asked);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(numbers, [1, 2, 3], "it has acknowledged nothing");
    host.taken = 3;
    let answer = host.acknowledge(callback.expect("it was asked")).await;
    host.ends(answer).await;
    stock.good(write).await;
}
