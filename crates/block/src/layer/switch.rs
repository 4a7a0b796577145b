//! One device in place of another, while requests wait.
//!
//! Requests go to the device of now. While the switch is held they wait, and then go, in their order, to the device that is there. What was
//! submitted before goes on at the device it went to: who switches sees to it that this is over.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use base::buffer::Buffer;

use crate::completion::{Completion, SlotSender, Workers};
use crate::device::{Device, Geometry, Identity, SharedDevice};
use crate::event::EventReceiver;
use crate::request::{Request, Response};

/// See the module. Poll [`SwitchLayer::run`] as long as it is in use.
pub struct SwitchLayer {
    /// Short sections, never across an await.
    current: RwLock<Current>,
    workers: Workers,
}

struct Current {
    device: SharedDevice,
    /// Requests that wait, while it is held. Bounded by what its users have under way.
    waiting: Option<VecDeque<(Request, SlotSender)>>,
}

impl SwitchLayer {
    /// A switch to `device`.
    pub fn new(device: SharedDevice) -> Self {
        Self { current: RwLock::new(Current { device, waiting: None }), workers: Workers::new() }
    }

    /// Carries on requests that waited. Ends with [`SwitchLayer::stop`].
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let workers = self.workers.clone();
        async move { workers.run().await }
    }

    /// Ends [`SwitchLayer::run`].
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// Lets requests wait from now on.
    pub fn hold(&self) {
        self.write().waiting.get_or_insert_default();
    }

    /// Puts `device` in the place of the one there is, if given, and sends there what waited.
    pub fn release(&self, device: Option<SharedDevice>) {
        let mut current = self.write();
        if let Some(device) = device {
            current.device = device;
        }
        for (request, sender) in current.waiting.take().unwrap_or_default() {
            let completion = current.device.submit(request);
            drop(Completion::task(&self.workers, async move {
                sender.complete(completion.await);
                Response::done(Buffer::empty())
            }));
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Current> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for SwitchLayer {
    fn geometry(&self) -> Geometry {
        self.read().device.geometry()
    }

    fn identity(&self) -> Identity {
        self.read().device.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        {
            // Submitted under the lock: who holds the switch then knows that nothing more comes.
            let current = self.read();
            if current.waiting.is_none() {
                return current.device.submit(request);
            }
        }
        let mut current = self.write();
        match &mut current.waiting {
            Some(waiting) => {
                let (completion, sender) = Completion::slot();
                waiting.push_back((request, sender));
                completion
            }
            None => current.device.submit(request),
        }
    }

    /// Events of the device that is there now, and no other's later.
    fn subscribe(&self) -> EventReceiver {
        self.read().device.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::executor::Executor;

    use super::*;
    use crate::device::DeviceExt;
    use crate::memory::MemoryDevice;

    fn memory(byte: u8) -> SharedDevice {
        let memory: SharedDevice = Arc::new(MemoryDevice::new(8192, Identity::default()));
        base::executor::block_on(memory.write(0, Buffer::copy_of(&[byte; 8192]), false)).unwrap();
        memory
    }

    #[test]
    fn requests_wait_while_it_is_held_and_go_to_the_device_that_is_there_then() {
        let (first, second) = (memory(1), memory(2));
        let switch = Arc::new(SwitchLayer::new(Arc::clone(&first)));
        let mut executor = Executor::in_order();
        executor.spawn(switch.run());
        let read = |executor: &mut Executor, device: &SharedDevice, offset| {
            executor.block_on(device.read(offset, Buffer::zeroed(512))).unwrap()[0]
        };
        let shared: SharedDevice = switch.clone();
        assert_eq!(read(&mut executor, &shared, 0), 1);
        switch.hold();
        let writes: Vec<_> = [5, 6].map(|byte| switch.write(0, Buffer::copy_of(&[byte; 512]), false)).into();
        let mut reading = switch.submit(Request::read(0, Buffer::zeroed(512)));
        executor.run();
        assert!(reading.try_take().is_none());
        assert_eq!(read(&mut executor, &first, 0), 1);
        switch.release(Some(Arc::clone(&second)));
        for write in writes {
            executor.block_on(write).unwrap();
        }
        assert_eq!(executor.block_on(reading).buffer[0], 6, "in their order");
        assert_eq!((read(&mut executor, &first, 0), read(&mut executor, &second, 0)), (1, 6));
        assert_eq!(read(&mut executor, &shared, 512), 2);
    }

    #[test]
    fn released_without_another_it_goes_on_as_before() {
        let switch = SwitchLayer::new(memory(1));
        switch.hold();
        let mut reading = switch.submit(Request::read(0, Buffer::zeroed(512)));
        assert!(reading.try_take().is_none());
        switch.release(None);
        assert_eq!(base::executor::block_on(reading).buffer[0], 1);
    }
}
