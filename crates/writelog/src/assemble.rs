//! Makes the parts of an open log, each with what it uses of the others.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base::clock::Clock;
use block::completion::Workers;
use block::range_lock::RangeLock;
use block::{EventHub, SharedDevice};
use futures_util::lock::Mutex;
use store::{Forgettings, Life, LogPosition, Superblock};
use uuid::Uuid;

use crate::activity::Activity;
use crate::append::RecordSender;
use crate::batch_writer::BatchWriter;
use crate::checkpoint::Checkpoints;
use crate::contents::Contents;
use crate::core::Core;
use crate::counters::Counters;
use crate::entrance::Admission;
use crate::events::OriginEvents;
use crate::failure_note::FailureNotes;
use crate::flush::Flusher;
use crate::format::ParametersRaw;
use crate::layout::{Layout, LogPlace};
use crate::level1::SlotMover;
use crate::level2::Destager;
use crate::limits::{LUMPS_OF_SLOTS, POOLED_BYTES_MORE, UNIT_BYTES};
use crate::loaded::SegmentLoader;
use crate::log_state::{LogState, State};
use crate::lost::LostData;
use crate::map::Piece;
use crate::next_epoch::Epochs;
use crate::numbers::Sector;
use crate::options::{DestageOrder, Durability, OpenOptions};
use crate::origin::Origin;
use crate::pace::Pace;
use crate::past_log::PastLog;
use crate::places::PlaceReader;
use crate::read::Reader;
use crate::records::RecordCache;
use crate::recovery::Recovered;
use crate::selection::Selection;
use crate::settings::Settings;
use crate::shadow::Shadow;
use crate::snapshot::Snapshots;
use crate::stage::{Slot, Stage, stage_tag};
use crate::status::RecoveryReport;
use crate::sums::Sums;
use crate::used_buffers::UsedBuffers;
use crate::write::Writer;

/// Makes an open log of what its opening found.
pub(crate) fn assemble(
    log_device: SharedDevice,
    origin: Origin,
    options: OpenOptions,
    superblock: Superblock<ParametersRaw>,
    layout: Layout,
    recovered: Recovered,
    stage: Option<Stage>,
) -> Arc<Core> {
    let (state, report) = state_of(&options, layout, recovered, stage);
    Assembly::new(log_device, origin, options, superblock.uuid(), state).join(superblock, report)
}

/// The state of a log that goes on from what its opening found, and the report with what was found in `stage`.
pub(crate) fn state_of(
    options: &OpenOptions,
    layout: Layout,
    recovered: Recovered,
    stage: Option<Stage>,
) -> (State, RecoveryReport) {
    let epoch = recovered.start.position.epoch + 1;
    let position = LogPosition { epoch, ..recovered.start.position };
    let mut report = recovered.report;
    let slots_bytes = stage.as_ref().map_or(0, Stage::size_bytes);
    let has_zeroes = recovered.map.dirty_from(Sector::FIRST).any(|piece| piece.is_zero());
    let contents = Contents {
        layout,
        map: recovered.map,
        shadow: Shadow::new(options.durability == Durability::UnsafeVolatile),
        segments: recovered.segments,
        stage: None,
        records: RecordCache::new(record_cache_bytes(options, &layout)),
        sums: Sums::new(layout.segment_count, options.order == DestageOrder::Lba),
        applied: LogPlace { position, ..recovered.start },
        zeroes_since: has_zeroes.then(|| options.clock.now()),
    };
    let pace = Pace::new(options.level2.pause_max, options.level2.reserve_bytes(layout.log_bytes()), 0);
    let slot_pace =
        Pace::new(options.level2.pause_max, options.level1.reserve_bytes(slots_bytes), slots_bytes / LUMPS_OF_SLOTS);
    let mut state = State::new(contents, pace, slot_pace, options.clock.now());
    if let Some(stage) = stage {
        let whole = |slot: &Slot, place| Piece {
            sector: slot.sector,
            sectors: u64::from(slot.sectors),
            place,
            tag: stage_tag(),
        };
        let found: Vec<Piece> = stage.slots_by_age().map(|(_, place, slot)| whole(slot, place)).collect();
        state.contents.stage = Some(stage);
        for piece in found {
            report.nvram_bytes += piece.sectors * UNIT_BYTES;
            state.contents.index(piece);
        }
        report.dirty_bytes = state.contents.map.dirty_sectors() * UNIT_BYTES;
    }
    (state, report)
}

fn record_cache_bytes(options: &OpenOptions, layout: &Layout) -> usize {
    options.record_cache_bytes.min(usize::try_from(layout.log_bytes()).unwrap_or(usize::MAX))
}

/// The devices, locks and small parts that others are made with, and a method for each of those.
pub(crate) struct Assembly {
    pub(crate) options: OpenOptions,
    pub(crate) log: Arc<LogState>,
    pub(crate) log_device: SharedDevice,
    pub(crate) uuid: Uuid,
    pub(crate) origin: Arc<Origin>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) life: Arc<Life>,
    pub(crate) workers: Workers,
    pub(crate) buffers: UsedBuffers,
    pub(crate) ranges: RangeLock,
    pub(crate) below: RangeLock,
    pub(crate) hub: EventHub,
    pub(crate) lost: Arc<LostData>,
}

impl Assembly {
    pub(crate) fn new(
        log_device: SharedDevice,
        origin: Origin,
        options: OpenOptions,
        uuid: Uuid,
        state: State,
    ) -> Self {
        let cached_bytes = record_cache_bytes(&options, &state.contents.layout);
        let buffer_bytes = cached_bytes + options.level2.batch_bytes as usize + POOLED_BYTES_MORE;
        let (log, counters) = (Arc::new(LogState::new(state)), Arc::new(Counters::default()));
        Self {
            lost: Arc::new(LostData::new(&log, &counters)),
            log,
            log_device,
            uuid,
            origin: Arc::new(origin),
            settings: Arc::new(Settings::new(&options)),
            activity: Arc::new(Activity::new(&options.clock)),
            counters,
            clock: Arc::clone(&options.clock),
            life: Arc::new(Life::new("the write log")),
            workers: Workers::new(),
            buffers: UsedBuffers::new(buffer_bytes),
            ranges: RangeLock::new(),
            below: RangeLock::new(),
            hub: EventHub::new(),
            options,
        }
    }

    /// Makes the parts, those first that others use.
    fn join(self, superblock: Superblock<ParametersRaw>, recovery: RecoveryReport) -> Arc<Core> {
        let records = Arc::new(self.records());
        let loader = Arc::new(self.loader());
        let checkpoints = Arc::new(self.checkpoints(superblock, &records));
        let notes = Arc::new(self.notes(&checkpoints));
        let origin_events = Arc::new(self.origin_events());
        let mover = Arc::new(self.mover(&records));
        let epochs = Arc::new(self.epochs(&records, &loader));
        let destager = Arc::new(Destager {
            log: Arc::clone(&self.log),
            settings: Arc::clone(&self.settings),
            origin: Arc::clone(&self.origin),
            origin_events: Arc::clone(&origin_events),
            selection: self.selection(&records, &loader, &epochs),
            writer: self.batch_writer(),
            destaging: Arc::clone(&epochs.destaging),
            mover: Arc::clone(&mover),
            records: Arc::clone(&records),
            checkpoints: Arc::clone(&checkpoints),
            notes: Arc::clone(&notes),
            lost: Arc::clone(&self.lost),
            activity: Arc::clone(&self.activity),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
            life: Arc::clone(&self.life),
        });
        let flusher = Arc::new(self.flusher(&mover, &destager, &notes));
        let admission = Arc::new(self.admission());
        let writer = Arc::new(Writer {
            log: Arc::clone(&self.log),
            settings: Arc::clone(&self.settings),
            admission: Arc::clone(&admission),
            records: Arc::clone(&records),
            mover: Arc::clone(&mover),
            flusher: Arc::clone(&flusher),
            past_log: self.past_log(&origin_events, &notes, &mover, &epochs),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
        });
        Arc::new(Core {
            reader: Arc::new(self.reader(records, loader)),
            origin_events,
            checkpoints,
            notes,
            mover,
            epochs,
            destager,
            admission,
            writer,
            flusher,
            recovery,
            log: self.log,
            origin: self.origin,
            life: self.life,
            settings: self.settings,
            activity: self.activity,
            clock: self.clock,
            ranges: self.ranges,
            below: self.below,
            workers: self.workers,
            lost: self.lost,
            events: self.hub,
            counters: self.counters,
        })
    }

    pub(crate) fn records(&self) -> RecordSender {
        RecordSender {
            log: Arc::clone(&self.log),
            log_device: Arc::clone(&self.log_device),
            uuid: self.uuid,
            workers: self.workers.clone(),
            buffers: self.buffers.clone(),
            clock: Arc::clone(&self.clock),
            counters: Arc::clone(&self.counters),
            order: self.settings.order,
        }
    }

    pub(crate) fn loader(&self) -> SegmentLoader {
        SegmentLoader {
            log: Arc::clone(&self.log),
            log_device: Arc::clone(&self.log_device),
            uuid: self.uuid,
            buffers: self.buffers.clone(),
            settings: Arc::clone(&self.settings),
            lost: Arc::clone(&self.lost),
        }
    }

    pub(crate) fn places(&self, loader: &Arc<SegmentLoader>) -> PlaceReader {
        PlaceReader {
            log: Arc::clone(&self.log),
            log_device: Arc::clone(&self.log_device),
            loader: Arc::clone(loader),
            lost: Arc::clone(&self.lost),
        }
    }

    pub(crate) fn snapshots(&self) -> Snapshots {
        Snapshots {
            log: Arc::clone(&self.log),
            lost: Arc::clone(&self.lost),
            life: Arc::clone(&self.life),
            keeps_order: self.settings.keeps_order(),
            has_nvram: self.options.nvram.is_some(),
        }
    }

    pub(crate) fn checkpoints(
        &self,
        superblock: Superblock<ParametersRaw>,
        records: &Arc<RecordSender>,
    ) -> Checkpoints {
        Checkpoints {
            log: Arc::clone(&self.log),
            log_device: Arc::clone(&self.log_device),
            uuid: self.uuid,
            superblock: Mutex::new(superblock),
            snapshots: self.snapshots(),
            records: Arc::clone(records),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
            life: Arc::clone(&self.life),
            order: self.settings.order,
            tokens: self.options.tokens,
            interval_bytes: self.options.checkpoint_interval_bytes,
            pause: self.options.checkpoint_pause,
        }
    }

    pub(crate) fn notes(&self, checkpoints: &Arc<Checkpoints>) -> FailureNotes {
        FailureNotes {
            log: Arc::clone(&self.log),
            log_device: Arc::clone(&self.log_device),
            checkpoints: Arc::clone(checkpoints),
            life: Arc::clone(&self.life),
            elsewhere: self.options.failure_note.clone(),
        }
    }

    pub(crate) fn origin_events(&self) -> OriginEvents {
        OriginEvents {
            origin: Arc::clone(&self.origin),
            log: Arc::clone(&self.log),
            ranges: self.ranges.clone(),
            forgettings: Forgettings::default(),
            workers: self.workers.clone(),
            hub: self.hub.clone(),
            life: Arc::clone(&self.life),
        }
    }

    pub(crate) fn mover(&self, records: &Arc<RecordSender>) -> SlotMover {
        SlotMover {
            log: Arc::clone(&self.log),
            records: Arc::clone(records),
            settings: Arc::clone(&self.settings),
            activity: Arc::clone(&self.activity),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
            life: Arc::clone(&self.life),
            moving: Arc::new(Mutex::new(())),
        }
    }

    pub(crate) fn epochs(&self, records: &Arc<RecordSender>, loader: &Arc<SegmentLoader>) -> Epochs {
        Epochs {
            log: Arc::clone(&self.log),
            loader: Arc::clone(loader),
            settings: Arc::clone(&self.settings),
            counters: Arc::clone(&self.counters),
            records: Arc::clone(records),
            destaging: Arc::new(Mutex::new(None)),
        }
    }

    pub(crate) fn selection(
        &self,
        records: &Arc<RecordSender>,
        loader: &Arc<SegmentLoader>,
        epochs: &Arc<Epochs>,
    ) -> Selection {
        Selection {
            log: Arc::clone(&self.log),
            settings: Arc::clone(&self.settings),
            records: Arc::clone(records),
            loader: Arc::clone(loader),
            places: self.places(loader),
            epochs: Arc::clone(epochs),
        }
    }

    pub(crate) fn batch_writer(&self) -> BatchWriter {
        BatchWriter {
            origin: Arc::clone(&self.origin),
            log: Arc::clone(&self.log),
            settings: Arc::clone(&self.settings),
            activity: Arc::clone(&self.activity),
            below: self.below.clone(),
            buffers: self.buffers.clone(),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
        }
    }

    pub(crate) fn flusher(
        &self,
        mover: &Arc<SlotMover>,
        destager: &Arc<Destager>,
        notes: &Arc<FailureNotes>,
    ) -> Flusher {
        Flusher {
            log: Arc::clone(&self.log),
            durability: self.settings.durability,
            mover: Arc::clone(mover),
            destager: Arc::clone(destager),
            notes: Arc::clone(notes),
        }
    }

    pub(crate) fn admission(&self) -> Admission {
        Admission {
            log: Arc::clone(&self.log),
            settings: Arc::clone(&self.settings),
            ranges: self.ranges.clone(),
            workers: self.workers.clone(),
            clock: Arc::clone(&self.clock),
            counters: Arc::clone(&self.counters),
            entering_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn past_log(
        &self,
        origin_events: &Arc<OriginEvents>,
        notes: &Arc<FailureNotes>,
        mover: &SlotMover,
        epochs: &Epochs,
    ) -> PastLog {
        PastLog {
            log: Arc::clone(&self.log),
            origin: Arc::clone(&self.origin),
            origin_events: Arc::clone(origin_events),
            notes: Arc::clone(notes),
            moving: Arc::clone(&mover.moving),
            destaging: Arc::clone(&epochs.destaging),
            below: self.below.clone(),
        }
    }

    pub(crate) fn reader(&self, records: Arc<RecordSender>, loader: Arc<SegmentLoader>) -> Reader {
        Reader {
            log: Arc::clone(&self.log),
            log_device: Arc::clone(&self.log_device),
            origin: Arc::clone(&self.origin),
            loader,
            records,
            below: self.below.clone(),
            checking: Mutex::new(()),
            counters: Arc::clone(&self.counters),
            clock: Arc::clone(&self.clock),
        }
    }
}
