//! A device whose submitters take turns as the connections of the NBD server do ([`crate::admission`]).
//!
//! A gateway's initiators are its submitters, each by its name, however many sessions it has. The reads and writes of
//! one that asks for much go to the device in pieces, and few of them beside one that asks for little: the device, or
//! the link to a far one, answers by arrival, and a read of one block would wait for all that others have there. All
//! other requests go to it as they are.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::completion::Workers;
use block::layer::submitter::SubmitterLayer;
use block::{
    Buffer, Completion, Copies, Device, Error, EventReceiver, Geometry, Identity, Operation, Request, Response,
    SharedDevice, Submitter,
};
use tokio::time::Instant;

use crate::admission::{Admission, ConnectionTurns, DeviceTurns, cost_of};
use crate::exported::Exported;
use crate::partial::Blocks;

/// A device for several submitters. [`run`](Self::run) has to be polled for as long as it is used.
pub struct TurnsLayer {
    inner: SharedDevice,
    admission: Arc<Admission>,
    clients: Arc<Clients>,
    workers: Workers,
}

/// The submitters that had requests lately.
#[derive(Default)]
struct Clients(Mutex<BTreeMap<Submitter, Client>>);

struct Client {
    turns: ConnectionTurns,
    /// Cost of its reads and writes under way.
    cost: u64,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Submitter, Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request of this cost. Returns its turns, where it has to take some.
    fn enter(&self, admission: &Arc<Admission>, submitter: Submitter, cost: u64) -> Option<DeviceTurns> {
        let mut clients = self.lock();
        if !clients.contains_key(&submitter) {
            let now = Instant::now();
            clients.retain(|_, client| !client.turns.has_rested(now));
            let turns = ConnectionTurns::new(Arc::clone(admission), submitter);
            clients.insert(submitter, Client { turns, cost: 0 });
        }
        let client = clients.get_mut(&submitter)?;
        client.cost += cost;
        client.turns.enter(client.cost)
    }

    /// Notes that such a request has ended.
    fn leave(&self, submitter: Submitter, cost: u64) {
        if let Some(client) = self.lock().get_mut(&submitter) {
            client.cost -= cost;
            client.turns.leave();
        }
    }
}

impl TurnsLayer {
    /// The device of `exported`, of which other fronts have their shares too.
    pub fn new(exported: &Exported) -> Self {
        let (inner, admission) = (Arc::clone(&exported.device), Arc::clone(&exported.admission));
        Self { inner, admission, clients: Arc::default(), workers: Workers::new() }
    }

    /// Carries on the requests that nobody awaits, without end.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let workers = self.workers.clone();
        async move { workers.run().await }
    }

    /// The request in pieces that each wait for their turn.
    fn in_turns(&self, request: Request, turns: DeviceTurns) -> impl Future<Output = Response> + Send + use<> {
        let geometry = self.inner.geometry();
        let device = Arc::new(SubmitterLayer::of(Arc::clone(&self.inner), request.submitter));
        async move {
            let blocks = match Blocks::new(device, &geometry, u64::MAX, Some(turns)) {
                Ok(blocks) => blocks,
                Err(error) => return request.fail(error),
            };
            let done: Result<Buffer, Error> = match request.operation {
                Operation::Read { buffer } => blocks.read(request.offset, buffer).await,
                Operation::Write { buffer, fua } => {
                    blocks.write(request.offset, buffer, fua).await.map(|()| Buffer::empty())
                }
                _ => unreachable!("only what moves data takes turns"),
            };
            done.map_or_else(|error| Response::failed(error, Buffer::empty()), Response::done)
        }
    }
}

impl Device for TurnsLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let bytes = match &request.operation {
            Operation::Read { buffer } | Operation::Write { buffer, .. } => buffer.len() as u64,
            _ => return self.inner.submit(request),
        };
        let (submitter, cost) = (request.submitter, cost_of(bytes));
        let turns = self.clients.enter(&self.admission, submitter, cost);
        let clients = Arc::clone(&self.clients);
        match turns {
            None => self.inner.submit(request).then(&self.workers, move |response| {
                clients.leave(submitter, cost);
                Completion::ready(response)
            }),
            Some(turns) => {
                let in_turns = self.in_turns(request, turns);
                Completion::task(&self.workers, async move {
                    let response = in_turns.await;
                    clients.leave(submitter, cost);
                    response
                })
            }
        }
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }

    fn copies(&self) -> Option<Copies> {
        self.inner.copies()
    }
}

#[cfg(test)]
mod tests {
    use block::device::DeviceExt;
    use block::memory::MemoryDevice;

    use super::*;
    use crate::limits::BESIDE_TIME;

    #[tokio::test(start_paused = true)]
    async fn those_who_rest_are_forgotten_when_another_one_comes() {
        let layer = TurnsLayer::new(&Exported::alone(Arc::new(MemoryDevice::new(1 << 20, Identity::default()))));
        let clients = Arc::clone(&layer.clients);
        let layer: SharedDevice = Arc::new(layer);
        for number in 0..100 {
            let device = SubmitterLayer::of(Arc::clone(&layer), Submitter::named(&number.to_string()));
            device.read(0, Buffer::zeroed(4096)).await.unwrap();
            tokio::time::sleep(BESIDE_TIME / 4).await;
        }
        assert!((2..=5).contains(&clients.lock().len()), "{}", clients.lock().len());
        assert!(clients.lock().values().all(|client| client.cost == 0));
    }
}
