//! What tests of single parts need: devices, an empty log's state, and the parts made of them one by one.

use std::sync::Arc;

use base::buffer::Buffer;
use base::executor::Executor;
use block::completion::Workers;
use block::layer::crash::CrashLayer;
use block::{Device, SharedDevice};
use store::{LogPosition, Sequence, Superblock};

use crate::append::RecordSender;
use crate::assemble::{Assembly, state_of};
use crate::entry::Content;
use crate::format::{KIND, ParametersRaw};
use crate::layout::{Layout, LogPlace};
use crate::limits::UNIT_BYTES;
use crate::map::{ExtentMap, Piece};
use crate::numbers::Sector;
use crate::nvram::VolatileRegion;
use crate::options::{Durability, FormatOptions, OpenOptions};
use crate::origin::Origin;
use crate::place::Place;
use crate::recovery::Recovered;
use crate::segments::Segments;
use crate::stage::{Stage, stage_tag};
use crate::status::RecoveryReport;

/// The devices of a log and what its parts are made with. Nothing runs but workers.
pub(crate) struct Parts {
    pub(crate) executor: Executor,
    pub(crate) device: CrashLayer,
    pub(crate) origin: CrashLayer,
    pub(crate) superblock: Superblock<ParametersRaw>,
    pub(crate) assembly: Assembly,
}

impl Parts {
    /// An empty log of 4 MiB in segments of 64 KiB, without records in RAM; `change` makes its options others.
    pub(crate) fn new(change: impl FnOnce(&mut OpenOptions)) -> Self {
        let mut executor = Executor::in_order();
        let (device, origin) = (CrashLayer::new(4 << 20, 1), CrashLayer::new(1 << 20, 2));
        let (log_device, lun): (SharedDevice, SharedDevice) = (Arc::new(device.clone()), Arc::new(origin.clone()));
        let (formatted, its_origin) = (Arc::clone(&log_device), Arc::clone(&lun));
        let superblock: Superblock<ParametersRaw> = executor
            .block_on(async move {
                crate::open::format(&formatted, &its_origin, FormatOptions::paper()).await?;
                Superblock::read(&formatted, KIND).await
            })
            .expect("nothing fails");
        let mut options = OpenOptions::new(Arc::new(executor.clock()));
        options.record_cache_bytes = 0;
        change(&mut options);
        let layout = Layout::new(4 << 20, &FormatOptions::paper()).expect("it is large enough");
        let mut segments = Segments::new(layout.segment_count);
        let segment = segments.take_next().expect("all are free");
        let position = LogPosition { offset: 0, epoch: 0, sequence: Sequence::FIRST, link: 0 };
        let start = LogPlace { segment, position, ..LogPlace::default() };
        let recovered = Recovered { map: ExtentMap::default(), segments, start, report: RecoveryReport::default() };
        let stage = (options.durability == Durability::UnsafeVolatile).then(|| {
            let region = Arc::new(VolatileRegion::new(64 << 10));
            let now = options.clock.now();
            Stage::open(region, superblock.uuid(), layout.slot_bytes, false, false, now).expect("it is nobody's")
        });
        let (state, _) = state_of(&options, layout, recovered, stage);
        let origin_view = Origin::new(Arc::clone(&lun), lun.identity(), lun.subscribe());
        let assembly = Assembly::new(log_device, origin_view, options, superblock.uuid(), state);
        let workers: Workers = assembly.workers.clone();
        executor.spawn(async move { workers.run().await });
        Self { executor, device, origin, superblock, assembly }
    }

    /// Puts `sectors` full of `byte` into the log, durably, and returns the piece that it has there.
    pub(crate) fn append(&mut self, records: &Arc<RecordSender>, sector: u64, sectors: u64, byte: u8) -> Piece {
        let entry = bytes_of(sector, sectors, byte);
        let appended = records.append(vec![entry]);
        self.executor.block_on(appended).result.expect("nothing fails");
        let state = self.assembly.log.state();
        state.contents.map.pieces(Sector(sector), sectors).next().expect("it is in the map")
    }

    /// Writes `sectors` full of `byte` to a slot.
    pub(crate) fn put_in_slot(&self, sector: u64, sectors: u64, byte: u8) -> Piece {
        let contents = &mut self.assembly.log.state().contents;
        let data = vec![byte; (sectors * UNIT_BYTES) as usize];
        let stage = contents.stage.as_mut().expect("there are slots");
        assert!(sectors <= stage.slot_sectors(), "it is one slot");
        let unit = stage.write(Sector(sector), &data, self.assembly.clock.now()).expect("one is free");
        let piece = Piece { sector: Sector(sector), sectors, place: Place::slot(unit), tag: stage_tag() };
        contents.index(piece);
        piece
    }
}

/// An entry for a record: `sectors` full of `byte`.
pub(crate) fn bytes_of(sector: u64, sectors: u64, byte: u8) -> (Sector, u64, Content) {
    let buffer = Arc::new(Buffer::copy_of(&vec![byte; (sectors * UNIT_BYTES) as usize]));
    (Sector(sector), sectors, Content::Bytes { buffer, at: 0 })
}
