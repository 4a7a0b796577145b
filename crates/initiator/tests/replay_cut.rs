//! The session is lost once more while copies are written again.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::Buffer;
use block::device::DeviceExt;
use initiator::State;
use support::World;

#[test]
fn a_session_that_is_lost_while_copies_are_written_again_is_followed_by_one_that_serves() {
    for budget in (0..60_000).step_by(1499) {
        let mut world = World::new(1);
        let geometry = block::Geometry { is_write_cache_volatile: true, ..block::Geometry::plain(1 << 20) };
        let medium = block::layer::crash::CrashLayer::new(1 << 20, 1).with_geometry(geometry);
        world.serve(Arc::new(medium));
        let lun = world.connect(world.options()).unwrap();
        for block in 0..8 {
            let writing = lun.write(block * 8192, Buffer::copy_of(&[7; 4096]), false);
            world.run(writing).unwrap();
        }
        world.network.cut_next_after(budget);
        world.network.cut();
        world.pass(Duration::from_secs(30));
        let reading = lun.read(0, Buffer::zeroed(4096));
        world.executor.spawn(async move { drop(reading.await) });
        // Not a multiple of the time after which an idle unit is asked.
        world.pass(Duration::from_secs(28));
        let status = lun.status();
        assert_eq!((status.state, status.waiting, status.in_flight), (State::Online, 0, 0), "cut after {budget} bytes");
    }
}
