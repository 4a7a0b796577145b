//! Identity, size and capabilities of a logical unit, as read when a session begins.
//!
//! TEST UNIT READY first, until the unit attentions of the new nexus are taken; then INQUIRY, the
//! VPD pages, READ CAPACITY and the caching page. For a page that a unit does not have the
//! standard's defaults count.

use std::time::Duration;

use block::{Buffer, Error, ErrorKind, Geometry, Hints, Identity};
use iscsi::initiator::{Command, Data, Outcome};
use iscsi::name;
use iscsi::pdu::TaskAttribute;
use scsi::capacity::Capacity;
use scsi::cdb::{CdbForm, ModeSense};
use scsi::change_mark::Support;
use scsi::inquiry::{Peripheral, StandardInquiry};
use scsi::vpd::{self, BlockLimits, Designator, LogicalBlockProvisioning};
use scsi::{Cdb, Sense, SenseKey, Status, mode, sharing};

use crate::error::{LinkError, sense_error};
use crate::limits::{
    ATTEMPTS_MAX, BUSY_WAIT_MAX, BUSY_WAIT_MIN, COMMAND_BYTES_MAX, CONTROL_DATA_BYTES, TRANSFER_BYTES_MAX,
    UNIT_ATTENTIONS_MAX, UNMAP_DESCRIPTORS_MAX,
};
use crate::link::Link;
use crate::options::InitiatorOptions;
use crate::verdict::{Attention, attention, is_without_access};

/// The properties of a logical unit that commands need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// LUN field.
    pub(crate) lun: u64,
    /// T10 vendor identification.
    pub(crate) vendor: String,
    pub(crate) identity: Identity,
    pub(crate) geometry: Geometry,
    /// DPOFUA: the FUA bit is honoured.
    pub(crate) has_fua: bool,
    /// Whether it has no write cache at present, and another host may switch one on while our
    /// commands are under way.
    pub(crate) may_get_cache: bool,
    /// Whether the sixteen-byte READ CAPACITY answered; then READ(16) and the like do as well.
    pub(crate) has_sixteen: bool,
    /// Bytes one READ or WRITE may move.
    pub(crate) command_bytes_max: u32,
    /// Most blocks of one WRITE SAME(16); `None` where it is not to be used.
    pub(crate) write_same_blocks_max: Option<u64>,
    /// Whether GET LBA STATUS is of use: holes read as zeroes.
    pub(crate) has_lba_status: bool,
    /// Whether WRITE SAME may unmap and still give zeroes.
    pub(crate) write_same_unmaps: bool,
    pub(crate) unmap: Option<UnmapLimits>,
    /// How it reports changes by others; `None` where it does not.
    pub(crate) change_marks: Option<Support>,
    /// The bounds for hosts that share it coherently; `None` where it cannot be shared.
    pub(crate) sharing: Option<sharing::Support>,
}

/// The limits of one UNMAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnmapLimits {
    /// Blocks of all its descriptors.
    pub(crate) blocks_max: u64,
    pub(crate) descriptors_max: u32,
    pub(crate) granularity_blocks: u64,
    pub(crate) alignment_blocks: u64,
}

impl UnmapLimits {
    /// Blocks one UNMAP of one range may ask for: a descriptor counts its blocks in 32 bits.
    pub(crate) fn command_blocks_max(&self) -> u64 {
        self.blocks_max.min(u64::from(self.descriptors_max) * u64::from(u32::MAX))
    }
}

impl Unit {
    /// Bytes of a logical block.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.geometry.logical_block_bytes.into()
    }

    /// Whether copies of completed writes must be kept until a flush.
    pub(crate) fn is_volatile(&self) -> bool {
        self.geometry.is_write_cache_volatile
    }
}

/// Page control of MODE SENSE (SPC-4 6.14.1).
const CURRENT_VALUES: u8 = 0;
const CHANGEABLE_VALUES: u8 = 1;

/// Bytes moved by a command that ended well, or the sense data of one that did not.
type Answer = Result<Vec<u8>, Sense>;

/// Reads the properties of one logical unit. No other command is under way on the link.
pub(crate) struct Probe<'a> {
    link: &'a mut Link,
    options: &'a InitiatorOptions,
    lun: u64,
}

impl<'a> Probe<'a> {
    pub(crate) fn new(link: &'a mut Link, options: &'a InitiatorOptions) -> Result<Self, LinkError> {
        let lun = scsi::lun::encode(options.lun.into()).map(u64::from_be_bytes);
        let no_lun = |_| LinkError::Unit(Error::new(ErrorKind::NotFound, format!("{} is no LUN", options.lun)));
        let lun = lun.map_err(no_lun)?;
        Ok(Self { link, options, lun })
    }

    pub(crate) fn options(&self) -> &InitiatorOptions {
        self.options
    }

    /// Reads all properties, and starts again when the unit reports a change or a loss meanwhile.
    pub(crate) async fn run(&mut self) -> Result<Unit, LinkError> {
        for _ in 0..ATTEMPTS_MAX {
            let vendor = self.check_presence().await?;
            self.await_readiness().await?;
            let already = self.link.senses.len();
            let unit = self.look(vendor).await?;
            let is_news = |sense: &Sense| attention(sense) > Attention::None;
            if !self.link.senses.iter().skip(already).any(is_news) {
                return Ok(unit);
            }
        }
        Err(self.failed("it never stays the same"))
    }

    /// Reads the properties of a unit that is ready, of this vendor.
    async fn look(&mut self, vendor: String) -> Result<Unit, LinkError> {
        let identity = self.identity().await?;
        let (capacity, has_sixteen) = self.capacity().await?;
        let limits = self.page(vpd::page::BLOCK_LIMITS, BlockLimits::parse).await?.unwrap_or_default();
        let provisioning = self.page(vpd::page::LOGICAL_BLOCK_PROVISIONING, LogicalBlockProvisioning::parse).await?;
        let provisioning = provisioning.unwrap_or_default();
        let listed = self.page(vpd::page::SUPPORTED_PAGES, listed_pages).await?.unwrap_or_default();
        let change_marks = self.listed_page(&listed, vpd::page::CHANGE_MARKS, Support::parse).await?;
        let sharing = self.listed_page(&listed, vpd::page::SHARING, sharing::Support::parse).await?;
        let (header, caching) = self.caching(CURRENT_VALUES).await?;
        let may_get_cache =
            !caching.is_write_cache_enabled && self.caching(CHANGEABLE_VALUES).await?.1.is_write_cache_enabled;
        let block_bytes = capacity.block_bytes;
        let block_bytes_u64 = u64::from(block_bytes);
        let unmap = unmap_limits(&limits, provisioning.has_unmap, &capacity);
        let command_bytes_max = match u64::from(limits.transfer_blocks_max) * block_bytes_u64 {
            0 => COMMAND_BYTES_MAX,
            bytes => u32::try_from(bytes).unwrap_or(u32::MAX).min(COMMAND_BYTES_MAX),
        };
        let geometry = Geometry {
            size_bytes: capacity.size_bytes(),
            logical_block_bytes: block_bytes,
            physical_block_bytes: block_bytes.saturating_mul(1 << capacity.physical_block_exponent.min(15)),
            is_write_cache_volatile: caching.is_write_cache_enabled,
            is_read_only: header.is_write_protected,
            discard_granularity_bytes: unmap
                .map(|unmap| u32::try_from(unmap.granularity_blocks * block_bytes_u64).unwrap_or(u32::MAX)),
            // UNMAP is a hint (SBC-3 4.7.3.4): what it passed over keeps its content.
            discard_reads_zeroes: false,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            hints: Hints::default(),
        };
        let unmapped_reads_zeroes = provisioning.unmapped_reads_zeroes || capacity.unmapped_reads_zeroes;
        let has_write_same = has_sixteen && (limits.write_same_blocks_max > 0 || provisioning.has_write_same_16);
        Ok(Unit {
            lun: self.lun,
            vendor,
            identity,
            geometry,
            has_fua: header.has_dpo_fua,
            may_get_cache,
            has_sixteen,
            command_bytes_max: command_bytes_max.max(block_bytes),
            write_same_blocks_max: has_write_same.then(|| match limits.write_same_blocks_max {
                0 => u64::from(u16::MAX),
                blocks => blocks.min(u32::MAX.into()),
            }),
            has_lba_status: has_sixteen && unmapped_reads_zeroes,
            write_same_unmaps: provisioning.has_write_same_16 && unmapped_reads_zeroes,
            unmap,
            change_marks,
            sharing,
        })
    }

    /// Reads a vendor's page, only where it is listed.
    async fn listed_page<T>(
        &mut self,
        listed: &[u8],
        page: u8,
        parse: impl Fn(&[u8]) -> Result<Option<T>, scsi::Malformed>,
    ) -> Result<Option<T>, LinkError> {
        if !listed.contains(&page) {
            return Ok(None);
        }
        Ok(self.page(page, parse).await?.flatten())
    }

    /// Checks by INQUIRY, which succeeds for every LUN, that there is a unit (SPC-4 6.6.2). Returns
    /// its T10 vendor identification.
    async fn check_presence(&mut self) -> Result<String, LinkError> {
        let cdb = Cdb::Inquiry { is_vpd: false, page: 0, allocation_length: 96 };
        let absent = || {
            let words = format!(
                "there is no LUN {} at {}; \"forebay target status\" on the target's host lists its LUNs",
                self.options.lun,
                self.options.place()
            );
            LinkError::Unit(Error::new(ErrorKind::NotFound, words))
        };
        let not_present = absent();
        let data = match self.ask(&cdb).await? {
            Ok(data) => data,
            Err(sense) if sense.asc == 0x25 => return Err(not_present),
            Err(sense) => return Err(LinkError::Unit(sense_error(&sense, "INQUIRY"))),
        };
        let inquiry = StandardInquiry::parse(&data).map_err(|error| self.malformed(error))?;
        match inquiry.peripheral {
            Peripheral::Disk => Ok(inquiry.vendor),
            Peripheral::Absent => Err(not_present),
            Peripheral::Other(code) if code >> 5 != 0 => Err(not_present),
            Peripheral::Other(code) => {
                let words = format!(
                    "LUN {} at {} is no disk but a device of type {:02x}h",
                    self.options.lun,
                    self.options.place(),
                    code & 0x1f
                );
                Err(LinkError::Unit(Error::new(ErrorKind::Unsupported, words)))
            }
        }
    }

    async fn await_readiness(&mut self) -> Result<(), LinkError> {
        match self.ask(&Cdb::TestUnitReady).await? {
            Ok(_) => Ok(()),
            // The unit exists, and can report its identity.
            Err(sense) if is_without_access(&sense) => Ok(()),
            Err(sense) => {
                Err(LinkError::Unit(sense_error(&sense, &format!("waiting for {} to be ready", self.options.place()))))
            }
        }
    }

    async fn identity(&mut self) -> Result<Identity, LinkError> {
        let serial = self.page(vpd::page::UNIT_SERIAL_NUMBER, vpd::parse_unit_serial_number).await?;
        let names = self.page(vpd::page::DEVICE_IDENTIFICATION, vpd::parse_device_identification).await?;
        let unit = best_designator(&names.unwrap_or_default()).unwrap_or_else(|| unnamed(self.options.lun));
        // Another spelling of the target's name means the same unit.
        Ok(Identity { target: name::folded(&self.options.target), unit, serial: serial.unwrap_or_default() })
    }

    async fn capacity(&mut self) -> Result<(Capacity, bool), LinkError> {
        match self.ask(&Cdb::ReadCapacity16 { allocation_length: Capacity::BYTES_16 as u32 }).await? {
            Ok(data) => return Ok((Capacity::parse_16(&data).map_err(|error| self.malformed(error))?, true)),
            Err(sense) if is_unsupported(&sense) => {}
            Err(sense) => return Err(LinkError::Unit(sense_error(&sense, "READ CAPACITY(16)"))),
        }
        match self.ask(&Cdb::ReadCapacity10).await? {
            Ok(data) => {
                let capacity = Capacity::parse_10(&data).map_err(|error| self.malformed(error))?;
                let too_large = || {
                    let words = format!("{} is too large for READ CAPACITY(10) and has no other", self.options.place());
                    LinkError::Unit(Error::new(ErrorKind::Unsupported, words))
                };
                Ok((capacity.ok_or_else(too_large)?, false))
            }
            Err(sense) => Err(LinkError::Unit(sense_error(&sense, "READ CAPACITY"))),
        }
    }

    /// The caching page, or its mask of changeable fields. A unit without this page has no cache,
    /// by its own report.
    async fn caching(&mut self, page_control: u8) -> Result<(mode::Header, mode::Caching), LinkError> {
        let sense = |page: u8| {
            Cdb::ModeSense(ModeSense {
                form: CdbForm::Six,
                is_long_lba_accepted: false,
                is_block_descriptor_disabled: true,
                page_control,
                page,
                subpage: 0,
                allocation_length: u16::from(u8::MAX),
            })
        };
        let mut answer = self.ask(&sense(mode::page::CACHING)).await?;
        if answer.as_ref().is_err_and(is_unsupported) {
            answer = self.ask(&sense(mode::page::ALL)).await?;
        }
        let volatile = mode::Caching { is_write_cache_enabled: true, ..Default::default() };
        let data = match answer {
            Ok(data) => data,
            Err(sense) if is_unsupported(&sense) => return Ok(Default::default()),
            // What the unit does not report now, as in standby, counts as the worse case until it is
            // read again.
            Err(_) => return Ok((mode::Header::default(), volatile)),
        };
        let (header, pages) = mode::parse(CdbForm::Six, &data).map_err(|error| self.malformed(error))?;
        let mut pages = mode::pages(pages).filter_map(Result::ok);
        let caching = pages.find(|page| page.code == mode::page::CACHING);
        let caching = caching.map(|page| mode::Caching::parse(page.bytes).unwrap_or(volatile));
        Ok((header, caching.unwrap_or_default()))
    }

    /// A VPD page; `None` where the unit lacks it or sends it malformed. An error, and so another
    /// attempt, where the unit does not say whether it has it.
    async fn page<T>(
        &mut self,
        page: u8,
        parse: impl Fn(&[u8]) -> Result<T, scsi::Malformed>,
    ) -> Result<Option<T>, LinkError> {
        let cdb = Cdb::Inquiry { is_vpd: true, page, allocation_length: CONTROL_DATA_BYTES as u16 };
        match self.ask(&cdb).await? {
            Ok(data) if data.is_empty() => Err(self.failed(&format!("VPD page {page:02x}h without data"))),
            Ok(data) => Ok(parse(&data).ok()),
            Err(sense) if is_unsupported(&sense) => Ok(None),
            Err(sense) => Err(LinkError::Unit(sense_error(&sense, &format!("INQUIRY of VPD page {page:02x}h")))),
        }
    }

    /// Sends a command that only reads. Unit attentions, busy units and units that are becoming
    /// ready are waited out.
    pub(crate) async fn ask(&mut self, cdb: &Cdb) -> Result<Answer, LinkError> {
        self.exchange(cdb, &[]).await
    }

    /// Sends a command that may be sent again, with `data_out`.
    pub(crate) async fn tell(&mut self, cdb: &Cdb, data_out: &[u8]) -> Result<Answer, LinkError> {
        self.exchange(cdb, data_out).await
    }

    async fn exchange(&mut self, cdb: &Cdb, data_out: &[u8]) -> Result<Answer, LinkError> {
        let deadline = self.options.clock.now() + self.options.command_timeout;
        let mut wait = BUSY_WAIT_MIN;
        let mut failures = 0;
        let mut refused_with = "unit attentions";
        for _ in 0..UNIT_ATTENTIONS_MAX {
            let command = control_command(self.lun, cdb, data_out, self.options.command_timeout);
            let completed = self.link.execute(command).await?;
            let (status, sense, received_bytes) = match completed.outcome {
                Outcome::Status { status, sense, received_bytes, .. } => (status, sense, received_bytes),
                Outcome::Failed(words) => return Err(self.failed(&words)),
                Outcome::Aborted | Outcome::NotSent => return Err(self.failed("no answer in time")),
            };
            let sense = Sense::parse(&sense).ok();
            let is_late = self.options.clock.now() >= deadline;
            match (Status::from_code(status), sense) {
                (Some(Status::Good | Status::ConditionMet), _) => {
                    return Ok(Ok(completed.buffer.get(..received_bytes).unwrap_or_default().to_vec()));
                }
                (Some(Status::CheckCondition), Some(sense)) => match sense.key {
                    // A unit attention is reported once, and the command that reports it was not carried out.
                    _ if sense.is_deferred || sense.key == SenseKey::UnitAttention => {
                        self.link.senses.push(sense);
                        refused_with = "unit attentions";
                        continue;
                    }
                    SenseKey::NotReady if sense.asc == 0x04 && sense.ascq == 0x01 && !is_late => {
                        refused_with = "becoming ready";
                        wait = BUSY_WAIT_MAX;
                    }
                    SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed => {
                        return Ok(Ok(completed.buffer.get(..received_bytes).unwrap_or_default().to_vec()));
                    }
                    _ if !may_pass(&sense) || failures + 1 >= ATTEMPTS_MAX || is_late => return Ok(Err(sense)),
                    _ => {
                        failures += 1;
                        wait = (wait * 2).min(BUSY_WAIT_MAX);
                    }
                },
                (Some(status @ (Status::Busy | Status::TaskSetFull | Status::TaskAborted)), _) if !is_late => {
                    refused_with = status.name();
                    wait = (wait * 2).min(BUSY_WAIT_MAX);
                }
                (Some(Status::ReservationConflict), _) => {
                    let words = format!("{} is reserved by another initiator", self.options.place());
                    return Err(LinkError::Unit(Error::new(ErrorKind::ReservationConflict, words)));
                }
                (Some(status), _) => return Err(self.failed(&format!("status {}", status.name()))),
                (None, _) => return Err(self.failed(&format!("status {status:02x}h"))),
            }
            self.options.clock.sleep(wait).await;
        }
        Err(self.failed(&format!("{refused_with} without end")))
    }

    fn failed(&self, words: &str) -> LinkError {
        let context = format!("{} does not say what it is: {words}", self.options.place());
        LinkError::Unit(Error::new(ErrorKind::TimedOut, context))
    }

    fn malformed(&self, error: scsi::Malformed) -> LinkError {
        let context = format!("{} does not say what it is: {error}", self.options.place());
        LinkError::Unit(Error::new(ErrorKind::Corrupt, context))
    }
}

/// The codes of the VPD pages that the unit lists.
fn listed_pages(bytes: &[u8]) -> Result<Vec<u8>, scsi::Malformed> {
    vpd::body(vpd::page::SUPPORTED_PAGES, bytes).map(<[u8]>::to_vec)
}

/// Whether another attempt may bring another answer.
fn may_pass(sense: &Sense) -> bool {
    !matches!(sense.key, SenseKey::IllegalRequest | SenseKey::DataProtect) && !is_without_access(sense)
}

/// Whether the unit reports that it has no such command or page. An absent unit (25h) proves
/// nothing.
pub(crate) fn is_unsupported(sense: &Sense) -> bool {
    sense.key == SenseKey::IllegalRequest && sense.asc != 0x25
}

/// A command that moves a little data in one direction, or none.
fn control_command(lun: u64, cdb: &Cdb, data_out: &[u8], timeout: Duration) -> Command {
    let data = match (data_out.len(), cdb.parameter_data_bytes() as usize) {
        (0, 0) => Data::None,
        (0, length) => Data::Read(Buffer::zeroed(length), 0..length),
        (length, _) => Data::Write(Buffer::copy_of(data_out), 0..length),
    };
    Command { token: 0, lun, cdb: cdb.emit_padded(), attribute: TaskAttribute::Simple, data, timeout }
}

/// Whether the identity `found` at `lun` lacks something that is `known`, and contradicts nothing:
/// most likely the target left out an answer this time.
pub(crate) fn lacks_known_identity(found: &Identity, known: &Identity, lun: u16) -> bool {
    let is_unit_less = found.unit == unnamed(lun) && found.unit != known.unit;
    let is_serial_less = found.serial.is_empty() && !known.serial.is_empty();
    found.target == known.target
        && (is_unit_less || is_serial_less)
        && (is_unit_less || found.unit == known.unit)
        && (is_serial_less || found.serial == known.serial)
}

/// The name of a unit that has no designator.
fn unnamed(lun: u16) -> String {
    format!("lun {lun}")
}

/// The designator that is most surely unique: NAA, then EUI-64, then a name string, then a
/// vendor's.
fn best_designator(designators: &[Designator]) -> Option<String> {
    let rank = |designator: &&Designator| match designator {
        Designator::Naa(_) | Designator::NaaExtended(_) => 0,
        Designator::Eui64(_) => 1,
        Designator::Name(_) => 2,
        Designator::T10Vendor(_) => 3,
    };
    designators.iter().min_by_key(rank).map(Designator::to_string)
}

fn unmap_limits(limits: &BlockLimits, has_unmap: bool, capacity: &Capacity) -> Option<UnmapLimits> {
    let is_usable = (has_unmap || capacity.is_thin) && limits.unmap_blocks_max > 0 && limits.unmap_descriptors_max > 0;
    is_usable.then(|| UnmapLimits {
        // All ones means no limit (SBC-3 6.6.4).
        blocks_max: if limits.unmap_blocks_max == u32::MAX { u64::MAX } else { limits.unmap_blocks_max.into() },
        descriptors_max: limits.unmap_descriptors_max.min(UNMAP_DESCRIPTORS_MAX),
        granularity_blocks: limits.unmap_granularity_blocks.max(1).into(),
        alignment_blocks: limits.unmap_alignment_blocks.unwrap_or(0).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_is_most_surely_unique_is_the_identity() {
        let name = || Designator::Name("iqn.2026-11.io.forebay:disk,L,0x0".to_owned());
        let vendor = || Designator::T10Vendor("forebay disk".to_owned());
        let eui = || Designator::Eui64(vec![0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        let naa = || Designator::Naa(0x3123_4567_89ab_cdef);
        let of = |designators: &[Designator]| best_designator(designators);
        assert_eq!(of(&[vendor(), name(), eui(), naa()]), Some(naa().to_string()));
        assert_eq!(of(&[vendor(), name(), eui()]), Some(eui().to_string()));
        assert_eq!(of(&[vendor(), name()]), Some(name().to_string()));
        assert_eq!(of(&[vendor()]), Some(vendor().to_string()));
        assert_eq!(of(&[]), None);
    }
}
