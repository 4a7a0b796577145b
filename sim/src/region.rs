//! Persistent memory that loses power: stores that were not persisted land in part, 8 bytes at a
//! time.
//!
//! Each persist counts as a write on its power, so that the power may fail there as at the writes
//! of a disk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::random::Random;
use block::layer::crash::Power;
use writelog::PersistentRegion;

/// Bytes that a processor writes back at once.
const ATOMIC_BYTES: usize = 8;

/// Persistent memory that loses power.
pub struct CrashRegion {
    state: Mutex<State>,
    power: Power,
}

struct State {
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Offset and length of stores that are not persisted yet.
    unpersisted: Vec<(usize, usize)>,
}

impl CrashRegion {
    /// A region of `size_bytes` zeroes.
    pub fn new(power: &Power, size_bytes: usize) -> Arc<Self> {
        Self::of(power, vec![0; size_bytes])
    }

    fn of(power: &Power, bytes: Vec<u8>) -> Arc<Self> {
        let state = State { visible: bytes.clone(), durable: bytes, unpersisted: Vec::new() };
        Arc::new(Self { state: Mutex::new(state), power: power.clone() })
    }

    /// The region that the next start finds after a loss of power.
    #[must_use]
    pub fn after_power_loss(&self, power: &Power, seed: u64) -> Arc<Self> {
        let state = self.lock();
        let (mut bytes, mut random) = (state.durable.clone(), Random::new(seed));
        for &(offset, length) in &state.unpersisted {
            for start in (offset..offset + length).step_by(ATOMIC_BYTES) {
                let end = (start + ATOMIC_BYTES).min(offset + length);
                if random.chance(0.5) {
                    bytes[start..end].copy_from_slice(&state.visible[start..end]);
                }
            }
        }
        Self::of(power, bytes)
    }

    /// The region that the next start finds when only the program ended: the processor's caches are
    /// still there.
    #[must_use]
    pub fn after_restart(&self, power: &Power) -> Arc<Self> {
        Self::of(power, self.lock().visible.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PersistentRegion for CrashRegion {
    fn size_bytes(&self) -> usize {
        self.lock().visible.len()
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.lock().visible[offset..offset + bytes.len()]);
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        if self.power.is_lost() {
            return;
        }
        let mut state = self.lock();
        state.visible[offset..offset + bytes.len()].copy_from_slice(bytes);
        state.unpersisted.push((offset, bytes.len()));
    }

    fn persist(&self, offset: usize, length: usize) {
        if self.power.see_write() {
            return;
        }
        let State { visible, durable, unpersisted } = &mut *self.lock();
        durable[offset..offset + length].copy_from_slice(&visible[offset..offset + length]);
        unpersisted.retain(|&(start, count)| start < offset || start + count > offset + length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(region: &CrashRegion) -> Vec<u8> {
        let mut bytes = vec![0; region.size_bytes()];
        region.load(0, &mut bytes);
        bytes
    }

    #[test]
    fn what_was_persisted_survives_and_the_rest_lands_in_part() {
        let power = Power::new();
        let region = CrashRegion::new(&power, 128);
        region.store(0, &[1; 64]);
        region.persist(0, 64);
        region.store(64, &[2; 64]);
        power.fail_write(1);
        region.persist(64, 64);
        assert!(power.is_lost());
        region.store(0, &[3; 64]);
        assert_eq!(bytes(&region.after_restart(&Power::new()))[64..], [2; 64]);
        let after = bytes(&region.after_power_loss(&Power::new(), 5));
        assert_eq!(after[..64], [1; 64]);
        let landed = after[64..].chunks(ATOMIC_BYTES).filter(|chunk| **chunk == [2; ATOMIC_BYTES]).count();
        let missing = after[64..].chunks(ATOMIC_BYTES).filter(|chunk| **chunk == [0; ATOMIC_BYTES]).count();
        assert!(landed > 0 && missing > 0 && landed + missing == 64 / ATOMIC_BYTES, "{landed} and {missing}");
    }
}
