//! Paths of one client: one that is away hands requests on while another one has a session.

use super::*;
use crate::device::SharedDevice;
use crate::event::EventReceiver;
use crate::limits::ACCESS_WAIT;

/// How long a request is on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(10);

/// What a path does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It has a session, in which the request is carried out.
    CarryOut,
    /// It has one, in which the request fails for good.
    Fail,
    /// It has none. It hands the request on while another path has one.
    Wait,
    /// It has none, and says that another one has, whatever that one says.
    HandOn,
}

/// The paths of one client.
#[derive(Clone)]
struct Client {
    unit: Arc<MemoryDevice>,
    clock: VirtualClock,
    workers: Workers,
    doing: Arc<Mutex<Vec<Doing>>>,
    hubs: Arc<Vec<EventHub>>,
}

/// One of them.
struct ClientPath {
    client: Client,
    index: usize,
}

impl Client {
    fn doing(&self, index: usize) -> Doing {
        self.doing.lock().expect("no test panics with it")[index]
    }

    fn set(&self, index: usize, doing: Doing) {
        self.doing.lock().expect("no test panics with it")[index] = doing;
    }

    fn lose(&self, index: usize, doing: Doing) {
        self.set(index, doing);
        self.hubs[index].publish(&Event::Offline);
    }

    fn bring_back(&self, index: usize, doing: Doing) {
        self.set(index, doing);
        self.hubs[index].publish(&Event::Back);
    }

    fn has_other(&self, than: usize) -> bool {
        let doing = self.doing.lock().expect("no test panics with it");
        let others = doing.iter().enumerate().filter(|(index, _)| *index != than);
        others.into_iter().any(|(_, doing)| matches!(doing, Doing::CarryOut | Doing::Fail))
    }

    async fn carry_out(self, index: usize, request: Request) -> Response {
        loop {
            match self.doing(index) {
                Doing::Fail => return request.fail(ErrorKind::Gone),
                Doing::HandOn => return request.fail(ErrorKind::NoAccess),
                Doing::Wait if self.has_other(index) => return request.fail(ErrorKind::NoAccess),
                Doing::Wait => self.clock.sleep(Duration::from_millis(1)).await,
                Doing::CarryOut => {
                    self.clock.sleep(ON_ITS_WAY).await;
                    if self.doing(index) == Doing::CarryOut {
                        return self.unit.submit(request).await;
                    }
                }
            }
        }
    }
}

impl Device for ClientPath {
    fn geometry(&self) -> Geometry {
        self.client.unit.geometry()
    }

    fn identity(&self) -> Identity {
        self.client.unit.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        Completion::task(&self.client.workers, self.client.clone().carry_out(self.index, request))
    }

    fn subscribe(&self) -> EventReceiver {
        self.client.hubs[self.index].subscribe()
    }
}

/// A client of so many paths, which all have sessions.
fn client(policy: Policy, count: usize) -> (Executor, Client, Arc<Multipath>) {
    let mut executor = Executor::new(1);
    let (clock, workers) = (executor.clock(), Workers::new());
    let hubs = Arc::new((0..count).map(|_| EventHub::new()).collect::<Vec<_>>());
    let doing = Arc::new(Mutex::new(vec![Doing::CarryOut; count]));
    let client = Client { unit: unit(false), clock: clock.clone(), workers: workers.clone(), doing, hubs };
    let path = |index| Arc::new(ClientPath { client: client.clone(), index }) as SharedDevice;
    let device = Multipath::new((0..count).map(path).collect(), policy, PATIENCE, Arc::new(clock));
    let device = Arc::new(device.expect("they lead to one unit"));
    executor.spawn(async move { workers.run().await });
    let running = Arc::clone(&device);
    executor.spawn(async move { running.run().await });
    (executor, client, device)
}

/// How a read ends, and after what time.
fn timed_read(executor: &mut Executor, device: &Arc<Multipath>) -> (Result<(), ErrorKind>, Duration) {
    let (device, clock) = (Arc::clone(device), executor.clock());
    executor.block_on(async move {
        let began = clock.now();
        let read = device.read(0, Buffer::zeroed(512)).await;
        (read.map(drop).map_err(|error| error.kind()), clock.now().since(began))
    })
}

#[test]
fn a_request_that_every_path_has_lost_goes_by_the_one_that_is_back() {
    for policy in [Policy::Failover, Policy::RoundRobin] {
        let (mut executor, client, device) = client(policy, 2);
        let (losing, clock) = (client.clone(), client.clock.clone());
        executor.spawn(async move {
            clock.sleep(ON_ITS_WAY / 2).await;
            losing.lose(0, Doing::Wait);
            clock.sleep(ON_ITS_WAY).await;
            losing.bring_back(0, Doing::CarryOut);
            losing.lose(1, Doing::Wait);
        });
        let (read, took) = timed_read(&mut executor, &device);
        assert_eq!(read, Ok(()), "{policy:?}");
        assert!(took < 2 * ACCESS_WAIT, "{policy:?}: {took:?}");
        assert_eq!(device.paths().iter().map(|path| path.access).max(), Some(Access::Optimized), "no port refused it");
    }
}

/// The path that has a session has not joined yet, and counts as away.
#[test]
fn what_is_handed_on_goes_to_a_path_whose_events_do_not_say_yet_that_it_is_back() {
    for policy in [Policy::Failover, Policy::RoundRobin] {
        let (mut executor, client, device) = client(policy, 3);
        (0..3).for_each(|path| client.lose(path, Doing::Wait));
        client.set(2, Doing::CarryOut);
        let (read, took) = timed_read(&mut executor, &device);
        assert_eq!(read, Ok(()), "{policy:?}");
        assert!(took < ACCESS_WAIT, "{policy:?}: {took:?}");
    }
}

#[test]
fn a_request_that_all_paths_hand_on_waits_as_long_as_for_a_target_and_no_longer() {
    let (mut executor, client, device) = client(Policy::Failover, 2);
    (0..2).for_each(|path| client.lose(path, Doing::HandOn));
    let (read, took) = timed_read(&mut executor, &device);
    assert_eq!(read, Err(ErrorKind::NoAccess));
    assert!((PATIENCE..PATIENCE + ACCESS_WAIT).contains(&took), "{took:?}");
}

/// It would not come to another end by a path that is away.
#[test]
fn what_a_target_fails_does_not_wait_for_the_paths_that_are_away() {
    let (mut executor, client, device) = client(Policy::Failover, 3);
    client.lose(0, Doing::HandOn);
    client.set(1, Doing::Fail);
    client.lose(2, Doing::Wait);
    assert_eq!(timed_read(&mut executor, &device), (Err(ErrorKind::Gone), Duration::ZERO));
    client.bring_back(0, Doing::Fail);
    assert_eq!(timed_read(&mut executor, &device), (Err(ErrorKind::Gone), Duration::ZERO));
    assert_eq!(request_counts(&device)[2], 0);
}
