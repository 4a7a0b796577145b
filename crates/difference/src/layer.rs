//! The combined device of base and difference.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use block::completion::Workers;
use block::device::DeviceExt;
use block::limits::EXTENTS_PER_RESPONSE_MAX;
use block::range_lock::{Acquire, RangeLock};
use block::{
    Buffer, ByteRange, Completion, Device, Error, ErrorKind, EventReceiver, Extent, ExtentKind, Geometry, Identity,
    Operation, Request, Response, SharedDevice,
};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use store::{Binding, Superblock, superblock};
use uuid::Uuid;

use crate::format::{ContentId, KIND, Layout, ParametersRaw, SECTOR_BYTES, is_version_1, parse_sector};
use crate::limits::{CHUNK_BYTES_DEFAULT, MAP_READ_BYTES, MAP_WRITES_IN_FLIGHT};
use crate::map::{Map, Place};

/// Options of formatting.
#[derive(Clone, Copy, Debug)]
pub struct DifferenceOptions {
    /// Its identifier: two differences never have the same.
    pub uuid: Uuid,
    /// Bytes copied at once, a power of two from 4096 to 1 MiB.
    pub chunk_bytes: u32,
    /// Generation of the base's content, from 1 on; 0 where the user sets none.
    pub generation: u64,
}

impl DifferenceOptions {
    /// The defaults, with this identifier.
    pub fn new(uuid: Uuid) -> Self {
        Self { uuid, chunk_bytes: CHUNK_BYTES_DEFAULT, generation: 0 }
    }
}

/// The use of a difference's room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomStatus {
    /// Generation of the base's content when the difference was made; 0 where the user set none.
    pub generation: u64,
    /// Bytes copied at once.
    pub chunk_bytes: u64,
    /// Bytes of all slots.
    pub room_bytes: u64,
    /// Bytes of slots in use; those of discarded chunks count until the next flush.
    pub used_bytes: u64,
}

/// A base with a difference, as one device. Poll [`Difference::run`] as long as it is in use.
pub struct Difference {
    shared: Arc<Shared>,
    workers: Workers,
}

/// What the owner does about an error.
type ErrorHook = Box<dyn Fn(&Error) + Send + Sync>;

struct Shared {
    base: SharedDevice,
    difference: SharedDevice,
    layout: Layout,
    generation: u64,
    /// By whole chunks. Reads share.
    ranges: RangeLock,
    /// Taken before `map` to store the map, once at a time.
    storing: futures_util::lock::Mutex<()>,
    /// The failed flush since which slots are not used any more. It may have dropped data in slots,
    /// also around what was written, and a later flush that succeeds would seem to have made it
    /// durable. The next opening finds what was flushed before.
    failure: OnceLock<Error>,
    /// Why the base is another one by now: what is read there does not belong to what is in slots.
    other_base: OnceLock<Error>,
    superblock: futures_util::lock::Mutex<Superblock<ParametersRaw>>,
    /// Short sections, never across an await.
    map: Mutex<Map>,
    /// Why nothing is written any more, while what is in slots is whole.
    no_writes: OnceLock<Error>,
    hook: OnceLock<ErrorHook>,
}

/// A part of a request with one source.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Offset in the request's buffer.
    at: u64,
    length: u64,
    source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Base,
    Zeroes,
    /// The difference, at this offset.
    Difference(u64),
}

impl Difference {
    /// Makes `difference` an empty difference from `base`. What was on it is gone: the caller asks first.
    ///
    /// # Errors
    /// `InvalidRange` when it is too small, and for an impossible chunk size; `Unsupported` when it
    /// cannot be written in 512 bytes or the base has a name that is too long; the device's own.
    pub async fn format(
        difference: &SharedDevice,
        base: &SharedDevice,
        options: DifferenceOptions,
    ) -> Result<(), Error> {
        check_blocks(difference)?;
        let binding = Binding::of(&**base);
        let layout = Layout::new(options.uuid, &binding, difference.geometry().size_bytes, options.chunk_bytes)?;
        let parameters = ParametersRaw::new(&layout, &binding, options.generation)?;
        // The superblock last: a half-made difference has none.
        superblock::erase(difference).await?;
        let (mut offset, end) = (layout.sector_offset(0), layout.sector_offset(layout.sector_count()));
        while offset < end {
            let length = (end - offset).min(MAP_READ_BYTES as u64);
            difference.write(offset, Buffer::zeroed(length as usize), false).await?;
            offset += length;
        }
        difference.flush().await?;
        Superblock::create(difference, KIND, options.uuid, parameters).await?;
        Ok(())
    }

    /// Opens a difference made by [`Difference::format`]. If `generation`, that of the base's
    /// content, is given, a difference made for another one is refused. One program at a time: the
    /// caller keeps others off the device.
    ///
    /// # Errors
    /// `Corrupt` when the device has none, is damaged, or belongs to another base or generation
    /// (the message names both); the devices' own.
    pub async fn open(difference: SharedDevice, base: SharedDevice, generation: Option<u64>) -> Result<Self, Error> {
        check_blocks(&difference)?;
        let mut superblock: Superblock<ParametersRaw> = match Superblock::read(&difference, KIND).await {
            Err(_) if is_version_1(&difference).await => return Err(of_version_1()),
            read => read?,
        };
        let parameters = &superblock.payload;
        let binding = Binding::from_raw(&parameters.binding)?;
        binding.check_same(&Binding::of(&*base), KIND.name)?;
        check_generation(parameters.generation.get(), generation)?;
        if binding.size_bytes > base.geometry().size_bytes {
            return Err(of_larger_base(&binding, base.geometry().size_bytes));
        }
        let layout = Layout::of(superblock.uuid(), parameters, &binding, difference.geometry().size_bytes)?;
        // A program that was killed may have left writes in the device's volatile cache. A slot
        // that this map has as free must not turn out to be another chunk's after a later power
        // loss.
        difference.flush().await?;
        let map = load(&difference, &layout).await?;
        if superblock.copies().is_one_damaged() {
            superblock.write(&difference).await?;
        }
        let shared = Shared {
            base,
            difference,
            layout,
            generation: superblock.payload.generation.get(),
            superblock: futures_util::lock::Mutex::new(superblock),
            other_base: OnceLock::new(),
            ranges: RangeLock::new(),
            storing: futures_util::lock::Mutex::new(()),
            failure: OnceLock::new(),
            map: Mutex::new(map),
            no_writes: OnceLock::new(),
            hook: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared), workers: Workers::new() })
    }

    /// Carries on requests whose caller has stopped waiting. Ends with [`Difference::stop`].
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let workers = self.workers.clone();
        async move { workers.run().await }
    }

    /// Ends [`Difference::run`].
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// The ids of what the base had when the difference was last opened; none where that is not
    /// known.
    pub async fn contents(&self) -> Vec<ContentId> {
        self.shared.superblock.lock().await.payload.contents()
    }

    /// Notes the ids of what the base has, durably.
    ///
    /// # Errors
    /// `Unsupported` when there are more than [`CONTENTS_MAX`](crate::limits::CONTENTS_MAX); the
    /// device's own.
    pub async fn note_contents(&self, ids: &[ContentId]) -> Result<(), Error> {
        let mut superblock = self.shared.superblock.lock().await;
        superblock.payload.set_contents(ids)?;
        superblock.write(&self.shared.difference).await
    }

    /// Refuses all reads and changes from now on with `error`, since the base is another one; what was
    /// written before can be flushed. Returns whether they were not refused before.
    pub fn refuse_base(&self, error: Error) -> bool {
        self.shared.other_base.set(error).is_ok()
    }

    /// Why nothing is read or written any more, if the base is another one.
    pub fn refusal(&self) -> Option<&Error> {
        self.shared.other_base.get()
    }

    /// The use of its room.
    pub fn status(&self) -> RoomStatus {
        let layout = &self.shared.layout;
        RoomStatus {
            generation: self.shared.generation,
            chunk_bytes: layout.chunk_bytes,
            room_bytes: layout.slot_count * layout.chunk_bytes,
            used_bytes: self.shared.map().used_count() * layout.chunk_bytes,
        }
    }

    /// Calls `hook` with each error of a request from now on, once or more, before the request is
    /// answered with it. Only the first hook counts.
    pub fn on_error(&self, hook: impl Fn(&Error) + Send + Sync + 'static) {
        // Whoever made the difference sets one.
        let _ = self.shared.hook.set(Box::new(hook));
    }

    /// From now on whatever concerns what is in slots fails with `error`: their content is lost.
    pub fn give_up(&self, error: Error) {
        // The first error is the one to tell.
        let _ = self.shared.failure.set(error);
    }

    /// From now on writes and flushes fail with `error`, since nothing lasts that is written; reads go
    /// on, since all that was written is still there.
    pub fn refuse_writes(&self, error: Error) {
        let _ = self.shared.no_writes.set(error);
    }
}

/// Refuses a device that cannot write the map in whole sectors of 512 bytes.
fn check_blocks(difference: &SharedDevice) -> Result<(), Error> {
    let block_bytes = difference.geometry().logical_block_bytes;
    if block_bytes as usize <= SECTOR_BYTES {
        return Ok(());
    }
    let context =
        format!("a difference is written in {SECTOR_BYTES} bytes, and its device has blocks of {block_bytes}");
    Err(Error::new(ErrorKind::Unsupported, context))
}

/// Refuses a difference made from other content of the same base: it would mix the chunks of both
/// unnoticed.
fn check_generation(made_for: u64, generation: Option<u64>) -> Result<(), Error> {
    let Some(now) = generation.filter(|&now| now != made_for) else { return Ok(()) };
    let context = if made_for == 0 {
        format!("this difference was made without a generation, and the disk is said to have generation {now}")
    } else {
        format!("this difference is from generation {made_for} of the disk, which is said to have generation {now}")
    };
    Err(Error::new(ErrorKind::Corrupt, format!("{context}: what is in it does not belong to what the disk has now")))
}

fn of_larger_base(binding: &Binding, size_bytes: u64) -> Error {
    let context = format!(
        "this difference was made for \"{}\" of {} bytes, and the disk now has {size_bytes}",
        binding.identity, binding.size_bytes
    );
    Error::new(ErrorKind::Corrupt, context)
}

fn of_version_1() -> Error {
    let context = format!("this difference has version 1; this program reads {}", KIND.version);
    Error::new(ErrorKind::Corrupt, context)
}

async fn load(difference: &SharedDevice, layout: &Layout) -> Result<Map, Error> {
    let mut map = Map::new(layout);
    let mut sector = 0;
    while sector < layout.sector_count() {
        let count = (layout.sector_count() - sector).min(MAP_READ_BYTES / SECTOR_BYTES);
        let bytes = difference.read(layout.sector_offset(sector), Buffer::zeroed(count * SECTOR_BYTES)).await?;
        for (sector, bytes) in (sector..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            if let Some(entries) = parse_sector(layout.uuid, sector, bytes)? {
                map.load(sector, &entries)?;
            }
        }
        sector += count;
    }
    Ok(map)
}

impl Device for Difference {
    fn geometry(&self) -> Geometry {
        let (base, layout) = (self.shared.base.geometry(), &self.shared.layout);
        let difference = self.shared.difference.geometry();
        Geometry {
            size_bytes: layout.base_bytes,
            is_write_cache_volatile: true,
            is_read_only: difference.is_read_only,
            discard_granularity_bytes: Some(layout.chunk_bytes as u32),
            discard_reads_zeroes: true,
            transfer_bytes_max: base.transfer_bytes_max.min(difference.transfer_bytes_max),
            ..base
        }
    }

    /// The base's target, with a unit and a serial number that are unique to this difference.
    fn identity(&self) -> Identity {
        let base = self.shared.base.identity();
        let uuid = self.shared.layout.uuid.simple().to_string();
        Identity { target: base.target, unit: format!("{} difference {uuid}", base.unit), serial: uuid }
    }

    fn submit(&self, request: Request) -> Completion {
        let range = match self.geometry().check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        let shared = Arc::clone(&self.shared);
        let chunks = shared.whole_chunks(range);
        let place = match request.operation {
            Operation::Read { .. } | Operation::Extents { .. } => shared.ranges.shared(chunks),
            Operation::Write { .. } | Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                shared.ranges.exclusive(chunks)
            }
            Operation::Flush => {
                return Completion::task(&self.workers, async move { shared.told(answer(shared.flush().await)) });
            }
        };
        let operation = request.operation;
        Completion::task(&self.workers, async move { shared.told(shared.carry_out(range, operation, place).await) })
    }

    fn subscribe(&self) -> EventReceiver {
        self.shared.base.subscribe()
    }
}

fn answer(result: Result<(), Error>) -> Response {
    Response { result, ..Response::done(Buffer::empty()) }
}

impl Shared {
    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn whole_chunks(&self, range: ByteRange) -> ByteRange {
        let chunk_bytes = self.layout.chunk_bytes;
        let offset = range.offset / chunk_bytes * chunk_bytes;
        ByteRange { offset, length: range.end().next_multiple_of(chunk_bytes) - offset }
    }

    /// The parts of `range` in each chunk, with the chunk's number.
    fn parts(&self, range: ByteRange) -> impl Iterator<Item = (u64, ByteRange)> + use<> {
        let chunk_bytes = self.layout.chunk_bytes;
        let mut rest = range;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let chunk = rest.offset / chunk_bytes;
            let end = ((chunk + 1) * chunk_bytes).min(rest.end());
            let part = ByteRange { offset: rest.offset, length: end - rest.offset };
            rest = ByteRange { offset: end, length: rest.end() - end };
            Some((chunk, part))
        })
    }

    /// The bytes of a chunk of the base; the last one may be short.
    fn chunk_range(&self, chunk: u64) -> ByteRange {
        let offset = chunk * self.layout.chunk_bytes;
        ByteRange { offset, length: self.layout.chunk_bytes.min(self.layout.base_bytes - offset) }
    }

    /// The response, of whose error the owner was told.
    fn told(&self, response: Response) -> Response {
        if let Err(error) = &response.result {
            self.tell(error);
        }
        response
    }

    fn tell(&self, error: &Error) {
        if let Some(hook) = self.hook.get() {
            hook(error);
        }
    }

    async fn carry_out(&self, range: ByteRange, operation: Operation, place: Acquire) -> Response {
        let _guard = place.await;
        match operation {
            Operation::Read { buffer } => self.read(range, buffer).await,
            Operation::Write { buffer, fua } => match self.write(range, &buffer, fua).await {
                Ok(()) => Response::done(buffer),
                Err(error) => Response::failed(error, buffer),
            },
            Operation::Discard { .. } => answer(self.zero(range, false).await),
            Operation::WriteZeroes { fua, .. } => answer(self.zero(range, fua).await),
            Operation::Extents { .. } => match self.extents(range).await {
                Ok(extents) => Response { extents, ..Response::done(Buffer::empty()) },
                Err(error) => Response::failed(error, Buffer::empty()),
            },
            Operation::Flush => answer(self.flush().await),
        }
    }

    /// The sources of a range, with adjacent parts of one source joined.
    fn pieces(&self, range: ByteRange) -> Vec<Piece> {
        let map = self.map();
        let mut pieces: Vec<Piece> = Vec::new();
        for (chunk, part) in self.parts(range) {
            let in_chunk = part.offset - chunk * self.layout.chunk_bytes;
            let source = match map.get(chunk) {
                Place::Base => Source::Base,
                Place::Zeroes => Source::Zeroes,
                Place::Slot(slot) => Source::Difference(self.layout.slot_offset(slot) + in_chunk),
            };
            match pieces.last_mut() {
                Some(last) if last.is_followed_by(source) => last.length += part.length,
                _ => pieces.push(Piece { at: part.offset - range.offset, length: part.length, source }),
            }
        }
        pieces
    }

    async fn read(&self, range: ByteRange, buffer: Buffer) -> Response {
        let pieces = self.pieces(range);
        let response = self.read_pieces(&pieces, range, buffer).await;
        let is_in_slot = |piece: &Piece| matches!(piece.source, Source::Difference(_));
        // Checked after the read: it may have returned slots whose data was dropped meanwhile, or
        // bytes of another base.
        if let Err(error) = self.check_base() {
            return Response::failed(error, response.buffer);
        }
        match self.check_slots() {
            Err(error) if pieces.iter().any(is_in_slot) => Response::failed(error, response.buffer),
            _ => response,
        }
    }

    async fn read_pieces(&self, pieces: &[Piece], range: ByteRange, mut buffer: Buffer) -> Response {
        if let [piece] = *pieces
            && let Some((device, offset)) = self.source(piece, range)
        {
            return device.submit(Request::read(offset, buffer)).await;
        }
        let reads = pieces.iter().map(|&piece| async move {
            match self.source(piece, range) {
                Some((device, offset)) => device.read(offset, Buffer::zeroed(piece.length as usize)).await.map(Some),
                None => Ok(None),
            }
        });
        for (piece, part) in pieces.iter().zip(join_all(reads).await) {
            let place = &mut buffer[piece.at as usize..(piece.at + piece.length) as usize];
            match part {
                Ok(Some(part)) => place.copy_from_slice(&part),
                Ok(None) => place.fill(0),
                Err(error) => return Response::failed(error, buffer),
            }
        }
        Response::done(buffer)
    }

    /// The device and offset of a piece; `None` for zeroes.
    fn source(&self, piece: Piece, range: ByteRange) -> Option<(&SharedDevice, u64)> {
        match piece.source {
            Source::Base => Some((&self.base, range.offset + piece.at)),
            Source::Difference(offset) => Some((&self.difference, offset)),
            Source::Zeroes => None,
        }
    }

    async fn write(&self, range: ByteRange, bytes: &[u8], fua: bool) -> Result<(), Error> {
        self.check_base()?;
        let writes = self.parts(range).map(|(chunk, part)| {
            let start = (part.offset - range.offset) as usize;
            self.write_part(chunk, part, &bytes[start..start + part.length as usize])
        });
        join_all(writes).await.into_iter().collect::<Result<(), Error>>()?;
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Fails once the base is another one.
    fn check_base(&self) -> Result<(), Error> {
        self.other_base.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Fails once a flush has failed: slots may lack their data.
    fn check_slots(&self) -> Result<(), Error> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Fails where what is written does not last.
    fn check_takes_writes(&self) -> Result<(), Error> {
        self.no_writes.get().map_or_else(|| self.check_slots(), |error| Err(error.clone()))
    }

    /// Writes part of a chunk: into its slot, or with the rest of it into a free one.
    async fn write_part(&self, chunk: u64, part: ByteRange, bytes: &[u8]) -> Result<(), Error> {
        self.check_takes_writes()?;
        let whole = self.chunk_range(chunk);
        let in_chunk = part.offset - whole.offset;
        let place = self.map().get(chunk);
        if let Place::Slot(slot) = place {
            let offset = self.layout.slot_offset(slot) + in_chunk;
            return self.difference.write(offset, Buffer::copy_of(bytes), false).await.map(drop);
        }
        let buffer = if part == whole {
            Buffer::copy_of(bytes)
        } else {
            let mut buffer = Buffer::zeroed(whole.length as usize);
            if place == Place::Base {
                buffer = self.base.read(whole.offset, buffer).await?;
            }
            buffer[in_chunk as usize..in_chunk as usize + bytes.len()].copy_from_slice(bytes);
            buffer
        };
        // After the read of what goes along.
        self.check_base()?;
        let slot = self.allocate().await?;
        let written = self.difference.write(self.layout.slot_offset(slot), buffer, false).await;
        let mut map = self.map();
        match written {
            Ok(_) => map.set(chunk, Place::Slot(slot)),
            Err(_) => map.give_back(slot),
        }
        written.map(drop)
    }

    /// Takes a free slot. When there is none, stores the map first, which frees slots of discarded
    /// chunks.
    async fn allocate(&self) -> Result<u32, Error> {
        if let Some(slot) = self.map().allocate() {
            return Ok(slot);
        }
        self.flush().await?;
        self.map().allocate().ok_or_else(|| {
            let context = format!(
                "the difference is full: all of its {} chunks of {} bytes are in use",
                self.layout.slot_count, self.layout.chunk_bytes
            );
            Error::new(ErrorKind::NoSpace, context)
        })
    }

    /// Makes a range zero: whole chunks give up their slots, parts of chunks are written.
    async fn zero(&self, range: ByteRange, fua: bool) -> Result<(), Error> {
        self.check_base()?;
        self.check_takes_writes()?;
        for (chunk, part) in self.parts(range) {
            let place = self.map().get(chunk);
            if part == self.chunk_range(chunk) {
                self.map().set(chunk, Place::Zeroes);
            } else if place != Place::Zeroes {
                self.write_part(chunk, part, &vec![0; part.length as usize]).await?;
            }
        }
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Makes the slots durable, then the map as it is now.
    async fn flush(&self) -> Result<(), Error> {
        let _alone = self.storing.lock().await;
        self.check_takes_writes()?;
        let changes = self.map().take_changes();
        let stored = self.store(&changes.sectors).await;
        let mut map = self.map();
        match stored {
            Ok(()) => map.finish(changes),
            Err(_) => map.put_back(changes),
        }
        stored
    }

    async fn store(&self, sectors: &[(usize, [u8; SECTOR_BYTES])]) -> Result<(), Error> {
        self.flush_difference().await?;
        if sectors.is_empty() {
            return Ok(());
        }
        let image = |(sector, bytes): &(usize, [u8; SECTOR_BYTES])| {
            (self.layout.sector_offset(*sector), Buffer::copy_of(bytes))
        };
        let images: Vec<(u64, Buffer)> = sectors.iter().map(image).collect();
        let writes = stream::iter(images).map(|(offset, buffer)| self.difference.write(offset, buffer, false));
        let written: Vec<Result<Buffer, Error>> = writes.buffer_unordered(MAP_WRITES_IN_FLIGHT).collect().await;
        written.into_iter().collect::<Result<Vec<_>, Error>>()?;
        self.flush_difference().await
    }

    async fn flush_difference(&self) -> Result<(), Error> {
        let flushed = self.difference.flush().await;
        flushed.inspect_err(|error| {
            // The owner may know that nothing was dropped.
            self.tell(error);
            if self.no_writes.get().is_none() {
                let _ = self.failure.set(error.clone());
            }
        })
    }

    /// The base's extents, overlaid with those of the difference. The answer ends where the base's
    /// does.
    async fn extents(&self, range: ByteRange) -> Result<Vec<Extent>, Error> {
        let mut extents = Vec::new();
        self.check_base()?;
        for piece in self.pieces(range) {
            let there = ByteRange { offset: range.offset + piece.at, length: piece.length };
            match piece.source {
                Source::Zeroes => push(&mut extents, Extent { range: there, kind: ExtentKind::Hole }),
                Source::Difference(_) => push(&mut extents, Extent { range: there, kind: ExtentKind::Data }),
                Source::Base => {
                    let of_base = self.base.extents(there.offset, there.length).await?;
                    let end = of_base.last().map_or(there.offset, |last| last.range.end());
                    of_base.into_iter().for_each(|extent| push(&mut extents, extent));
                    if end < there.end() {
                        break;
                    }
                }
            }
            if extents.len() >= EXTENTS_PER_RESPONSE_MAX {
                break;
            }
        }
        extents.truncate(EXTENTS_PER_RESPONSE_MAX);
        Ok(extents)
    }
}

impl Piece {
    /// Whether `source` continues this one.
    fn is_followed_by(&self, source: Source) -> bool {
        match (self.source, source) {
            (Source::Base, Source::Base) | (Source::Zeroes, Source::Zeroes) => true,
            (Source::Difference(offset), Source::Difference(next)) => offset + self.length == next,
            _ => false,
        }
    }
}

fn push(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.kind == extent.kind => last.range.length += extent.range.length,
        _ => extents.push(extent),
    }
}
