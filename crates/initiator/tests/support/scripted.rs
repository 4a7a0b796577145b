//! A target with one unit that has a volatile cache, and whose reaction to each command a script of
//! the test decides.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::serial::Serial32;
use block::completion::Workers;
use initiator::{BoxedStream, Connecting, Connector};
use iscsi::pdu::{
    AsyncEvent, AsyncMessage, Bhs, DataIn, LogoutOutcome, LogoutResponse, NopIn, ReadyToTransfer, Residual,
    ScsiCommand, ScsiResponse, ServiceResponse, TargetTransferTag, TaskManagementOutcome, TaskManagementResponse,
};
use iscsi::url::Portal;
use scsi::capacity::Capacity;
use scsi::cdb::CdbForm;
use scsi::inquiry::{Peripheral, StandardInquiry, VERSION_DESCRIPTORS};
use scsi::sharing::Message;
use scsi::sharing::message::{ASYNC_EVENT, ASYNC_VCODE};
use scsi::vpd::{self, Designator};
use scsi::{Cdb, Sense, mode};

use super::peer::{Peer, WINDOW};
use super::{World, lock};

/// The answer to a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u8,
    pub(crate) sense: Option<Sense>,
    /// The residual, where it is not the one that follows from `data`.
    pub(crate) residual: Option<Residual>,
    pub(crate) data: Vec<u8>,
}

impl Reply {
    pub(crate) fn data(data: Vec<u8>) -> Option<Self> {
        Some(Self { data, ..Self::default() })
    }

    pub(crate) fn sense(sense: Sense) -> Option<Self> {
        Some(Self { status: 2, sense: Some(sense), ..Self::default() })
    }
}

/// The script's decision about a command.
pub(crate) enum Reaction {
    /// It is carried out.
    Proper,
    Answer(Option<Reply>),
    /// It is carried out now if there is no reply, and answered when the next command has come, before that one.
    Hold(Option<Reply>),
    /// It does not arrive: nothing that comes later in its session is carried out, and the window stays as it is.
    Lose,
    /// It is carried out, and answered when the unit has reported this.
    Report(Sense),
    /// It is not answered, and the connection ends.
    Leave,
    /// R2Ts ask for its data again and again, and nothing more is read.
    Flood,
    /// It is carried out with success, and then the client of a shared unit is told these.
    Tell(Box<dyn Iterator<Item = Message> + Send>),
}

/// The page control of MODE SENSE that asks which bits can be changed (SPC-4 6.14.1).
const CHANGEABLE: u8 = 1;

type Script = Box<dyn FnMut(&mut Disk, &Cdb) -> Reaction + Send>;

/// A disk with a volatile cache. Blocks that were written are on the medium after a SYNCHRONIZE
/// CACHE.
pub(crate) struct Disk {
    medium: Vec<u8>,
    cache: BTreeMap<u64, Vec<u8>>,
    pub(crate) block_bytes: u32,
    /// WCE: whether writes without FUA go to the cache. Any initiator may switch it.
    pub(crate) is_cache_enabled: bool,
    /// Initiators may switch it.
    pub(crate) is_cache_changeable: bool,
    /// DPOFUA.
    pub(crate) has_fua: bool,
    /// Logins so far.
    pub(crate) session_count: u32,
    /// What came with the command that is looked at.
    pub(crate) data_out: Vec<u8>,
    /// The portal group that answers.
    pub(crate) group: &'static str,
}

impl Disk {
    /// The unit loses what is in its cache.
    pub(crate) fn lose_cache(&mut self) {
        self.cache.clear();
    }

    /// The unit is larger from now on.
    pub(crate) fn grow(&mut self, bytes: usize) {
        self.medium.resize(bytes, 0);
    }

    /// What would remain after a loss of power.
    pub(crate) fn durable(&self, offset: usize, length: usize) -> Vec<u8> {
        self.medium[offset..offset + length].to_vec()
    }

    fn read(&self, first: u64, count: u32) -> Vec<u8> {
        let length = self.block_bytes as usize;
        let block = |lba: u64| {
            let start = lba as usize * length;
            self.cache.get(&lba).cloned().unwrap_or_else(|| self.medium[start..start + length].to_vec())
        };
        (first..first + u64::from(count)).flat_map(block).collect()
    }

    fn write(&mut self, first: u64, data: &[u8], is_fua: bool) {
        let blocks = data.chunks(self.block_bytes as usize);
        let mut earlier = std::mem::take(&mut self.cache);
        self.cache.extend((first..).zip(blocks.map(<[u8]>::to_vec)));
        earlier.retain(|lba, _| !self.cache.contains_key(lba));
        if is_fua || !self.is_cache_enabled {
            self.synchronize();
        }
        self.cache.append(&mut earlier);
    }

    fn synchronize(&mut self) {
        for (lba, block) in std::mem::take(&mut self.cache) {
            let start = lba as usize * self.block_bytes as usize;
            self.medium[start..start + block.len()].copy_from_slice(&block);
        }
    }

    /// What the unit answers without a script; `None` where it does not know the command.
    fn carry_out(&mut self, cdb: &Cdb, data_out: &[u8]) -> Option<Reply> {
        match *cdb {
            Cdb::TestUnitReady => Reply::data(Vec::new()),
            Cdb::Inquiry { is_vpd: false, .. } => Reply::data(inquiry()),
            Cdb::Inquiry { page: vpd::page::UNIT_SERIAL_NUMBER, .. } => {
                Reply::data(vpd::emit_unit_serial_number("SCRIPTED"))
            }
            Cdb::Inquiry { page: vpd::page::DEVICE_IDENTIFICATION, .. } => {
                Reply::data(vpd::emit_device_identification(&[Designator::Naa(0x3000_0000_0000_0001)], &[]))
            }
            Cdb::ReadCapacity16 { .. } => Reply::data(self.capacity().emit_16().to_vec()),
            Cdb::ModeSense(sense) => {
                let is_changeable = sense.page_control == CHANGEABLE;
                let is_write_cache_enabled =
                    if is_changeable { self.is_cache_changeable } else { self.is_cache_enabled };
                let caching = mode::Caching { is_write_cache_enabled, is_read_cache_disabled: false };
                let header = mode::Header { has_dpo_fua: self.has_fua, ..mode::Header::default() };
                Reply::data(mode::emit(CdbForm::Six, &header, &caching.emit()))
            }
            Cdb::Read(transfer) => Reply::data(self.read(transfer.blocks.lba, transfer.blocks.count)),
            Cdb::Write(transfer) => {
                self.write(transfer.blocks.lba, data_out, transfer.is_fua);
                Reply::data(Vec::new())
            }
            Cdb::SynchronizeCache(_) => {
                self.synchronize();
                Reply::data(Vec::new())
            }
            Cdb::Inquiry { .. } => Reply::sense(Sense::INVALID_FIELD_IN_CDB),
            _ => Reply::sense(Sense::INVALID_OPERATION_CODE),
        }
    }

    fn capacity(&self) -> Capacity {
        Capacity {
            last_lba: self.medium.len() as u64 / u64::from(self.block_bytes) - 1,
            block_bytes: self.block_bytes,
            physical_block_exponent: 0,
            is_thin: false,
            unmapped_reads_zeroes: false,
            lowest_aligned_lba: 0,
        }
    }
}

fn inquiry() -> Vec<u8> {
    let inquiry = StandardInquiry {
        peripheral: Peripheral::Disk,
        is_removable: false,
        version: 6,
        vendor: "SCRIPT".to_owned(),
        product: "DISK".to_owned(),
        revision: "1".to_owned(),
        is_multi_port: false,
        has_target_port_groups: false,
        has_third_party_copy: false,
        version_descriptors: VERSION_DESCRIPTORS,
    };
    inquiry.emit().to_vec()
}

/// A connector to the scripted target.
#[derive(Clone)]
pub(crate) struct Scripted {
    disk: Arc<Mutex<Disk>>,
    script: Arc<Mutex<Script>>,
    workers: Workers,
}

impl Scripted {
    pub(crate) fn new(world: &World) -> Self {
        let (medium, cache) = (vec![0; 1 << 20], BTreeMap::new());
        let disk = Disk {
            medium,
            cache,
            block_bytes: 512,
            is_cache_enabled: true,
            is_cache_changeable: true,
            has_fua: false,
            session_count: 0,
            data_out: Vec::new(),
            group: "1",
        };
        let script: Script = Box::new(|_, _| Reaction::Proper);
        let (disk, script) = (Arc::new(Mutex::new(disk)), Arc::new(Mutex::new(script)));
        Self { disk, script, workers: world.workers.clone() }
    }

    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.disk)
    }

    /// Sets the script that decides about each command from now on.
    pub(crate) fn tell(&self, script: impl FnMut(&mut Disk, &Cdb) -> Reaction + Send + 'static) {
        *lock(&self.script) = Box::new(script);
    }

    fn deed(&self, cdb: &Cdb, data_out: &[u8]) -> Reaction {
        let mut disk = self.disk();
        disk.data_out = data_out.to_vec();
        match self.script.lock().unwrap_or_else(PoisonError::into_inner)(&mut disk, cdb) {
            Reaction::Proper => Reaction::Answer(disk.carry_out(cdb, data_out)),
            Reaction::Hold(None) => Reaction::Hold(disk.carry_out(cdb, data_out)),
            other => other,
        }
    }

    async fn run(self, mut peer: Peer) -> io::Result<()> {
        peer.log_in().await?;
        self.disk().session_count += 1;
        let mut window = WINDOW;
        let mut has_lost = false;
        let mut held: Option<(ScsiCommand, Reply)> = None;
        loop {
            let pdu = peer.receive().await?;
            match pdu.header.bhs {
                Ok(Bhs::ScsiCommand(_)) if has_lost => {}
                Ok(Bhs::ScsiCommand(command)) => {
                    let before = window;
                    if !command.is_immediate {
                        let next = command.cmd_sn.next();
                        window = (next, Serial32(next.0.wrapping_add(63)));
                    }
                    let cdb = Cdb::parse(&command.cdb).expect("our initiator sends what we know");
                    let deed = self.deed(&cdb, pdu.data.bytes());
                    if let Some((earlier, reply)) = held.take() {
                        answer(&mut peer, &earlier, reply, window).await?;
                    }
                    match deed {
                        Reaction::Answer(Some(reply)) => answer(&mut peer, &command, reply, window).await?,
                        Reaction::Hold(reply) => held = reply.map(|reply| (command, reply)),
                        Reaction::Answer(None) | Reaction::Proper => {}
                        Reaction::Lose => (has_lost, window) = (true, before),
                        Reaction::Report(sense) => {
                            let reply = self.disk().carry_out(&cdb, pdu.data.bytes());
                            report(&mut peer, sense, window).await?;
                            answer(&mut peer, &command, reply.unwrap_or_default(), window).await?;
                        }
                        Reaction::Leave => return Ok(()),
                        Reaction::Flood => return flood(&mut peer, &command, window).await,
                        Reaction::Tell(messages) => {
                            answer(&mut peer, &command, Reply::default(), window).await?;
                            for message in messages {
                                tell(&mut peer, &message, window).await?;
                            }
                        }
                    }
                }
                Ok(Bhs::NopOut(ping)) if ping.initiator_task_tag.is_some() => {
                    let pong = NopIn {
                        lun: 0,
                        initiator_task_tag: ping.initiator_task_tag,
                        target_transfer_tag: None,
                        stat_sn: peer.next_stat_sn(),
                        exp_cmd_sn: window.0,
                        max_cmd_sn: window.1,
                    };
                    peer.send(&pong, Vec::new()).await?;
                }
                Ok(Bhs::TaskManagementRequest(request)) => {
                    let response = TaskManagementResponse {
                        outcome: TaskManagementOutcome::FunctionComplete,
                        initiator_task_tag: request.initiator_task_tag,
                        stat_sn: peer.next_stat_sn(),
                        exp_cmd_sn: window.0,
                        max_cmd_sn: window.1,
                    };
                    peer.send(&response, Vec::new()).await?;
                }
                Ok(Bhs::LogoutRequest(request)) => {
                    let response = LogoutResponse {
                        outcome: LogoutOutcome::Closed,
                        initiator_task_tag: request.initiator_task_tag,
                        stat_sn: peer.next_stat_sn(),
                        exp_cmd_sn: window.0,
                        max_cmd_sn: window.1,
                        wait_seconds: 0,
                        retain_seconds: 0,
                    };
                    return peer.send(&response, Vec::new()).await;
                }
                _ => {}
            }
        }
    }
}

impl Connector for Scripted {
    fn connect(&self, _portal: &Portal) -> Connecting<'_> {
        let (near, far) = tokio::io::duplex(256 << 10);
        let peer = Peer::new(far, self.disk().group);
        let target = self.clone();
        self.workers.spawn(async move {
            // The error is that the initiator has closed the connection.
            let _ = target.run(peer).await;
        });
        Box::pin(async move { Ok(Box::new(near) as BoxedStream) })
    }
}

/// Ends when the initiator closes the connection.
async fn flood(peer: &mut Peer, command: &ScsiCommand, window: (Serial32, Serial32)) -> io::Result<()> {
    for number in 0.. {
        let r2t = ReadyToTransfer {
            lun: 0,
            initiator_task_tag: command.initiator_task_tag,
            target_transfer_tag: TargetTransferTag::new(1).expect("it is not the reserved one"),
            stat_sn: peer.stat_sn(),
            exp_cmd_sn: window.0,
            max_cmd_sn: window.1,
            r2t_sn: Serial32(number),
            buffer_offset: 0,
            desired_data_transfer_length: command.expected_data_transfer_length.min(64 << 10),
        };
        peer.send(&r2t, Vec::new()).await?;
    }
    Ok(())
}

async fn report(peer: &mut Peer, sense: Sense, window: (Serial32, Serial32)) -> io::Result<()> {
    let header = AsyncMessage {
        event: AsyncEvent::ScsiAsyncEvent,
        lun: 0,
        stat_sn: peer.next_stat_sn(),
        exp_cmd_sn: window.0,
        max_cmd_sn: window.1,
    };
    let sense = sense.emit_fixed();
    peer.send(&header, [&(sense.len() as u16).to_be_bytes()[..], &sense[..]].concat()).await
}

async fn tell(peer: &mut Peer, message: &Message, window: (Serial32, Serial32)) -> io::Result<()> {
    let header = AsyncMessage {
        event: AsyncEvent::Vendor { event: ASYNC_EVENT, code: ASYNC_VCODE, parameters: [0; 3] },
        lun: message.lun,
        stat_sn: peer.next_stat_sn(),
        exp_cmd_sn: window.0,
        max_cmd_sn: window.1,
    };
    // SenseLength comes first.
    peer.send(&header, [vec![0, 0], message.emit()].concat()).await
}

/// The data of a command, then its status.
async fn answer(
    peer: &mut Peer,
    command: &ScsiCommand,
    mut reply: Reply,
    window: (Serial32, Serial32),
) -> io::Result<()> {
    let expected = command.expected_data_transfer_length;
    reply.data.truncate(expected as usize);
    let moved = if command.reads { reply.data.len() as u64 } else { expected.into() };
    if !reply.data.is_empty() {
        let data_in = DataIn {
            is_final: true,
            wants_acknowledgement: false,
            status: None,
            lun: 0,
            initiator_task_tag: command.initiator_task_tag,
            target_transfer_tag: None,
            exp_cmd_sn: window.0,
            max_cmd_sn: window.1,
            data_sn: Serial32(0),
            buffer_offset: 0,
        };
        peer.send(&data_in, std::mem::take(&mut reply.data)).await?;
    }
    let sense = reply.sense.map(|sense| sense.emit_fixed()).map(|sense| {
        let length = (sense.len() as u16).to_be_bytes();
        [&length[..], &sense[..]].concat()
    });
    let response = ScsiResponse {
        response: ServiceResponse::CommandCompleted { status: reply.status },
        initiator_task_tag: command.initiator_task_tag,
        snack_tag: 0,
        stat_sn: peer.next_stat_sn(),
        exp_cmd_sn: window.0,
        max_cmd_sn: window.1,
        exp_data_sn: Serial32(u32::from(command.reads && moved > 0)),
        bidirectional_read_residual: Residual::None,
        residual: reply.residual.unwrap_or(Residual::of(expected, moved)),
    };
    peer.send(&response, sense.unwrap_or_default()).await
}
