//! Losses of acknowledged data: every client is told, also one whose flush was under way when it
//! lost its connection.

mod common;

use std::sync::{Arc, Mutex};

use base::clock::VirtualClock;
use block::completion::SlotSender;
use block::layer::loss_record::LossRecordLayer;
use block::limits::{ANSWER_READ_TIME, LEFT_TIME};
use block::losses::Losses;
use block::{
    Buffer, Completion, Device, ErrorKind, Geometry, Identity, OperationKind, Request, Response, SharedDevice,
};
use common::memory;
use common::step_client::StepClient;
use front::{Exported, NbdOptions, NbdServer};
use nbd::{Command, ErrorCode};
use tokio::io::AsyncWriteExt;

/// A device whose flushes wait for the test.
struct Waiting {
    below: SharedDevice,
    flushes: Mutex<Vec<SlotSender>>,
}

impl Device for Waiting {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        if request.operation.kind() != OperationKind::Flush {
            return self.below.submit(request);
        }
        let (completion, sender) = Completion::slot();
        self.flushes.lock().unwrap().push(sender);
        completion
    }
}

impl Waiting {
    /// Ends the oldest flush, once it is there.
    async fn end(&self, error: Option<ErrorKind>) {
        let sender = loop {
            let oldest = self.flushes.lock().unwrap().pop();
            match oldest {
                Some(sender) => break sender,
                None => tokio::task::yield_now().await,
            }
        };
        sender.complete(match error {
            Some(kind) => Response::failed(kind, Buffer::empty()),
            None => Response::done(Buffer::empty()),
        });
    }
}

/// A server, whose record of losses has a clock of its own.
struct Served {
    waiting: Arc<Waiting>,
    losses: Arc<Losses>,
    clock: VirtualClock,
    server: NbdServer,
}

fn served() -> Served {
    let (waiting, clock) =
        (Arc::new(Waiting { below: memory(1 << 20), flushes: Mutex::default() }), VirtualClock::new());
    let layer = Arc::new(LossRecordLayer::new(waiting.clone(), Arc::new(clock.clone())));
    let losses = Arc::clone(layer.losses());
    let exported = Exported { losses: Arc::clone(&losses), ..Exported::alone(layer) };
    Served { waiting, losses, clock, server: NbdServer::beside(exported, NbdOptions::default()) }
}

impl Served {
    /// Lets connections do what they can.
    async fn settle(&self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    /// Lets a client have read what it was answered.
    async fn wait(&self) {
        self.clock.advance(ANSWER_READ_TIME);
        self.settle().await;
    }

    /// A client with a flush under way loses its connection.
    async fn break_off(&self, mut client: StepClient) {
        client.send_only(Command::Flush).await;
        while self.waiting.flushes.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(client);
        self.settle().await;
    }
}

/// A flush of a client that the device answers so.
async fn flush(served: &Served, client: &mut StepClient, error: Option<ErrorKind>) -> Option<ErrorCode> {
    tokio::join!(client.code_of(Command::Flush), served.waiting.end(error)).0
}

const LOST: Option<ErrorKind> = Some(ErrorKind::Media);
const TOLD: Option<ErrorCode> = Some(ErrorCode::InputOutput);

#[tokio::test(start_paused = true)]
async fn every_client_is_told_once_of_a_loss_that_the_flush_of_another_reported() {
    let served = served();
    let mut first = StepClient::connect(&served.server).await;
    let mut second = StepClient::connect(&served.server).await;
    assert_eq!(flush(&served, &mut first, LOST).await, TOLD);
    assert!(served.losses.check_known().is_err(), "the answer may not have reached it");
    assert_eq!(flush(&served, &mut first, None).await, None);
    assert!(served.losses.check_known().is_err(), "that may have been on its way");
    served.wait().await;
    first.read(0, 512).await;
    assert!(served.losses.check_known().is_ok());
    assert_eq!(flush(&served, &mut second, None).await, TOLD);
    assert_eq!(flush(&served, &mut second, None).await, None);
    let mut later = StepClient::connect(&served.server).await;
    assert_eq!(flush(&served, &mut later, None).await, None);
}

/// A client gives up a flush that takes too long, connects anew, and flushes again: a kernel with
/// several connections, or with a time limit.
#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_is_told_of_the_loss_that_its_flush_reported_to_nobody() {
    for is_beside_another in [false, true] {
        let served = served();
        let mut beside = StepClient::connect(&served.server).await;
        served.break_off(StepClient::connect(&served.server).await).await;
        let mut again = StepClient::connect(&served.server).await;
        served.waiting.end(LOST).await;
        assert_eq!(served.losses.count(), 1);
        if is_beside_another {
            assert_eq!(flush(&served, &mut beside, None).await, TOLD);
            assert_eq!(flush(&served, &mut beside, None).await, None);
        }
        assert_eq!(flush(&served, &mut again, None).await, TOLD, "beside: {is_beside_another}");
        assert_eq!(flush(&served, &mut again, None).await, None);
    }
}

/// A client with a queue has requests on their way at any moment. It sends its flush again in a new
/// connection, as the kernel does.
#[tokio::test(start_paused = true)]
async fn requests_that_were_on_their_way_do_not_say_that_the_client_has_read_an_answer() {
    for case in ["at once", "received late", "half of it late"] {
        let served = served();
        let mut client = StepClient::connect(&served.server).await;
        client.send_only(Command::Flush).await;
        served.waiting.end(LOST).await;
        served.settle().await;
        let request = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 20], &512_u32.to_be_bytes()].concat();
        match case {
            // It may have been sent before.
            "received late" => served.clock.advance(ANSWER_READ_TIME),
            "half of it late" => {
                client.stream.write_all(&request[..9]).await.unwrap();
                served.wait().await;
            }
            _ => {}
        }
        let sent = if case == "half of it late" { 9 } else { 0 };
        client.stream.write_all(&request[sent..]).await.unwrap();
        served.settle().await;
        assert!(served.losses.check_known().is_err(), "{case}");
        drop(client);
        served.settle().await;
        let mut again = StepClient::connect(&served.server).await;
        assert_eq!(flush(&served, &mut again, None).await, TOLD, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_says_that_it_leaves_has_read_its_answers() {
    let served = served();
    let mut client = StepClient::connect(&served.server).await;
    assert_eq!(flush(&served, &mut client, LOST).await, TOLD);
    client.leave().await;
    assert!(served.losses.check_known().is_ok());
    let mut later = StepClient::connect(&served.server).await;
    assert_eq!(flush(&served, &mut later, None).await, None);
}

/// Somebody connects to the port and says nothing, or another client comes first and stays.
#[tokio::test(start_paused = true)]
async fn nobody_takes_the_report_away_from_a_client_that_comes_back() {
    let served = served();
    let mut beside = StepClient::connect(&served.server).await;
    served.break_off(StepClient::connect(&served.server).await).await;
    let silent: Vec<_> = (0..3)
        .map(|_| {
            let (near, far) = tokio::io::duplex(1 << 10);
            let server = served.server.clone();
            tokio::spawn(async move { server.serve_connection(far, std::future::pending()).await });
            near
        })
        .collect();
    served.settle().await;
    let mut other = StepClient::connect(&served.server).await;
    served.waiting.end(LOST).await;
    assert_eq!(flush(&served, &mut beside, None).await, TOLD);
    served.wait().await;
    beside.read(0, 512).await;
    assert!(served.losses.check_known().is_ok());
    let mut again = StepClient::connect(&served.server).await;
    assert_eq!(flush(&served, &mut other, None).await, TOLD, "it may be the one that comes back");
    assert_eq!(flush(&served, &mut again, None).await, TOLD);
    drop(silent);
    again.leave().await;
    served.clock.advance(LEFT_TIME);
    let mut later = StepClient::connect(&served.server).await;
    assert_eq!(flush(&served, &mut later, None).await, None, "it does not come back any more");
}

/// It has shown nothing, and leaves nothing: otherwise it would keep a report for others.
#[tokio::test(start_paused = true)]
async fn who_does_not_finish_the_handshake_is_no_client() {
    let served = served();
    let mut beside = StepClient::connect(&served.server).await;
    let (near, far) = tokio::io::duplex(1 << 10);
    let server = served.server.clone();
    tokio::spawn(async move { server.serve_connection(far, std::future::pending()).await });
    served.settle().await;
    drop(near);
    served.settle().await;
    assert_eq!(flush(&served, &mut beside, LOST).await, TOLD);
    served.wait().await;
    beside.read(0, 512).await;
    let mut later = StepClient::connect(&served.server).await;
    assert_eq!(flush(&served, &mut later, None).await, None);
}
