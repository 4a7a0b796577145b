//! Writers that know which content every block must have.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::random::Random;
use block::Buffer;
use block::device::DeviceExt;
use initiator::RemoteLun;

use super::World;

pub(crate) const BLOCK: usize = 4096;

/// A block that contains its number and version.
pub(crate) fn stamp(block: u64, version: u64) -> Vec<u8> {
    let words = [block, version].map(u64::to_le_bytes).concat();
    words.iter().copied().cycle().take(BLOCK).collect()
}

/// Version of a block's content; every stamp in it must be the same.
pub(crate) fn version(block: u64, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|&byte| byte == 0) {
        return 0;
    }
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    assert!(bytes == &stamp(block, version)[..], "block {block} is torn");
    version
}

/// Writers of blocks of their own, each in turns of write, sometimes flush, sometimes read. Ends with the last
/// acknowledged versions.
pub(crate) fn load(
    world: &mut World,
    lun: &Arc<RemoteLun>,
    writers: u64,
    rounds: u64,
    seed: u64,
) -> Rc<RefCell<Vec<u64>>> {
    let acknowledged = Rc::new(RefCell::new(vec![0; writers as usize]));
    for block in 0..writers {
        let (lun, clock, acknowledged) = (Arc::clone(lun), world.clock.clone(), Rc::clone(&acknowledged));
        let mut random = Random::new(seed ^ block << 32);
        world.executor.spawn(async move {
            for round in 1..=rounds {
                let bytes = Buffer::copy_of(&stamp(block, round));
                lun.write(block * BLOCK as u64, bytes, random.chance(0.1)).await.unwrap();
                acknowledged.borrow_mut()[block as usize] = round;
                if random.chance(0.2) {
                    lun.flush().await.unwrap();
                }
                if random.chance(0.3) {
                    let bytes = lun.read(block * BLOCK as u64, Buffer::zeroed(BLOCK)).await.unwrap();
                    assert_eq!(version(block, &bytes), round, "a read is never older than an acknowledged write");
                }
                clock.sleep(Duration::from_micros(random.below(300))).await;
            }
        });
    }
    acknowledged
}

/// Every block holds the last version that was acknowledged.
pub(crate) fn check(world: &mut World, device: &Arc<RemoteLun>, acknowledged: &[u64]) {
    for (block, &expected) in acknowledged.iter().enumerate() {
        let reading = device.read((block * BLOCK) as u64, Buffer::zeroed(BLOCK));
        let bytes = world.run(reading).unwrap();
        assert_eq!(version(block as u64, &bytes), expected, "block {block}");
    }
}
