//! A layer that replaces one device by another, while requests wait.
//!
//! Requests go to the present device. While the switch is held they wait, and then go, in their
//! order, to the device that is present then. Requests submitted before go on at their old device:
//! the caller that switches makes sure that they are over.
//!
//! A subscriber gets the events of the present device, and [`Event::Missed`] at each replacement:
//! events that the old device had received and not yet passed on are lost with it.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use base::buffer::Buffer;

use crate::completion::{Completion, SlotSender, Workers};
use crate::copies::Copies;
use crate::device::{Device, SharedDevice};
use crate::event::{Event, EventReceiver, EventRelay};
use crate::geometry::Geometry;
use crate::identity::Identity;
use crate::request::{Request, Response};

/// A device that can be replaced while requests wait. Poll [`SwitchLayer::run`] as long as it is in
/// use.
pub struct SwitchLayer {
    /// Short sections, never across an await.
    current: RwLock<Current>,
    workers: Workers,
    /// Whether any change was submitted.
    has_written: AtomicBool,
}

struct Current {
    device: SharedDevice,
    /// The relays of the subscribers.
    relays: Vec<EventRelay>,
    /// Waiting requests, while it is held; their count is bounded by the users.
    waiting: Option<VecDeque<(Request, SlotSender)>>,
}

impl SwitchLayer {
    /// A switch to `device`.
    pub fn new(device: SharedDevice) -> Self {
        let current = Current { device, relays: Vec::new(), waiting: None };
        Self { current: RwLock::new(current), workers: Workers::new(), has_written: AtomicBool::new(false) }
    }

    /// Carries on requests that have waited. Ends with [`SwitchLayer::stop`].
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let workers = self.workers.clone();
        async move { workers.run().await }
    }

    /// Ends [`SwitchLayer::run`].
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// Whether any change was submitted, over or not.
    pub fn has_written(&self) -> bool {
        self.has_written.load(Ordering::Relaxed)
    }

    /// Holds requests back from now on.
    pub fn hold(&self) {
        self.write().waiting.get_or_insert_default();
    }

    /// Replaces the device, if one is given, and submits the waiting requests to it.
    pub fn release(&self, device: Option<SharedDevice>) {
        let mut current = self.write();
        if let Some(device) = device {
            current.relays.retain(EventRelay::has_receiver);
            for relay in &mut current.relays {
                relay.follow(device.subscribe());
                relay.tell(&Event::Missed);
            }
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
        if request.is_mutation() && !self.has_written() {
            self.has_written.store(true, Ordering::Relaxed);
        }
        {
            // Submitted under the lock: so once the switch is held no further request reaches the
            // old device.
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

    fn subscribe(&self) -> EventReceiver {
        let mut current = self.write();
        let (receiver, mut relay) = EventRelay::new();
        relay.follow(current.device.subscribe());
        current.relays.retain(EventRelay::has_receiver);
        current.relays.push(relay);
        receiver
    }

    fn copies(&self) -> Option<Copies> {
        self.read().device.copies()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::executor::Executor;

    use super::*;
    use crate::device::DeviceExt;
    use crate::event::EventHub;
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
        assert!(!switch.has_written());
        switch.hold();
        let writes: Vec<_> = [5, 6].map(|byte| switch.write(0, Buffer::copy_of(&[byte; 512]), false)).into();
        let mut reading = switch.submit(Request::read(0, Buffer::zeroed(512)));
        executor.run();
        assert!(switch.has_written() && reading.try_take().is_none());
        assert_eq!(read(&mut executor, &first, 0), 1);
        switch.release(Some(Arc::clone(&second)));
        for write in writes {
            executor.block_on(write).unwrap();
        }
        assert_eq!(executor.block_on(reading).buffer[0], 6, "in their order");
        assert_eq!((read(&mut executor, &first, 0), read(&mut executor, &second, 0)), (1, 6));
        assert_eq!(read(&mut executor, &shared, 512), 2);
    }

    /// A device that only publishes events.
    struct Speaker(EventHub);

    impl Device for Speaker {
        fn geometry(&self) -> Geometry {
            Geometry::plain(8192)
        }

        fn identity(&self) -> Identity {
            Identity::default()
        }

        fn submit(&self, _: Request) -> Completion {
            Completion::ready(Response::done(Buffer::empty()))
        }

        fn subscribe(&self) -> EventReceiver {
            self.0.subscribe()
        }
    }

    #[test]
    fn who_listens_hears_the_device_of_now_as_soon_as_it_speaks() {
        let [first, second] = [EventHub::new(), EventHub::new()];
        let switch = SwitchLayer::new(Arc::new(Speaker(first.clone())));
        let receiver = switch.subscribe();
        first.publish(&Event::Offline);
        assert_eq!(receiver.try_receive(), Some(Event::Offline));
        first.publish(&Event::Back);
        switch.hold();
        switch.release(Some(Arc::new(Speaker(second.clone()))));
        assert_eq!((receiver.try_receive(), receiver.try_receive()), (Some(Event::Back), Some(Event::Missed)));
        assert_eq!((receiver.try_receive(), receiver.may_have_event()), (None, false));
        // A flush that ends after this has lost writes before it: the event is there when the
        // client looks.
        second.publish(&Event::WritesLost);
        assert!(receiver.may_have_event());
        first.publish(&Event::IdentityChanged);
        assert_eq!((receiver.try_receive(), receiver.try_receive()), (Some(Event::WritesLost), None));
        let waiting = async move { receiver.receive().await };
        second.publish(&Event::Offline);
        assert_eq!(base::executor::block_on(waiting), Event::Offline);
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
