//! Losses of acknowledged data: every client is told, also one whose flush was under way when it
//! lost its connection.

mod common;

use std::sync::{Arc, Mutex};

use block::completion::SlotSender;
use block::layer::loss_record::LossRecordLayer;
use block::{
    Buffer, Completion, Device, ErrorKind, Geometry, Identity, OperationKind, Request, Response, SharedDevice,
};
use common::memory;
use common::step_client::StepClient;
use front::{Exported, NbdOptions, NbdServer};
use nbd::ErrorCode;
use nbd::client::Command;

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

fn served() -> (Arc<Waiting>, Arc<LossRecordLayer>, NbdServer) {
    let waiting = Arc::new(Waiting { below: memory(1 << 20), flushes: Mutex::default() });
    let layer = Arc::new(LossRecordLayer::new(waiting.clone()));
    let exported = Exported { losses: Arc::clone(layer.losses()), ..Exported::alone(layer.clone()) };
    (waiting, layer, NbdServer::beside(exported, NbdOptions::default()))
}

/// A flush of a client that the device answers so.
async fn flush(waiting: &Waiting, client: &mut StepClient, error: Option<ErrorKind>) -> Option<ErrorCode> {
    tokio::join!(client.code_of(Command::Flush), waiting.end(error)).0
}

#[tokio::test(start_paused = true)]
async fn every_client_is_told_once_of_a_loss_that_the_flush_of_another_reported() {
    let (waiting, layer, server) = served();
    let mut first = StepClient::connect(&server).await;
    let mut second = StepClient::connect(&server).await;
    assert_eq!(flush(&waiting, &mut first, Some(ErrorKind::Media)).await, Some(ErrorCode::InputOutput));
    assert!(layer.losses().check_known().is_err(), "the answer may not have reached it");
    assert_eq!(flush(&waiting, &mut first, None).await, None);
    assert!(layer.losses().check_known().is_ok());
    assert_eq!(flush(&waiting, &mut second, None).await, Some(ErrorCode::InputOutput));
    assert_eq!(flush(&waiting, &mut second, None).await, None);
    let mut later = StepClient::connect(&server).await;
    assert_eq!(flush(&waiting, &mut later, None).await, None);
}

/// A client gives up a flush that takes too long, connects anew, and flushes again: a kernel with
/// several connections, or with a time limit.
#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_is_told_of_the_loss_that_its_flush_reported_to_nobody() {
    for is_beside_another in [false, true] {
        let (waiting, layer, server) = served();
        let mut beside = StepClient::connect(&server).await;
        let mut going = StepClient::connect(&server).await;
        tokio::select! {
            biased;
            _ = going.code_of(Command::Flush) => unreachable!("the device does not answer it"),
            () = async { while waiting.flushes.lock().unwrap().is_empty() { tokio::task::yield_now().await } } => {}
        }
        drop(going);
        let mut again = StepClient::connect(&server).await;
        waiting.end(Some(ErrorKind::Media)).await;
        assert_eq!(layer.losses().count(), 1);
        if is_beside_another {
            assert_eq!(flush(&waiting, &mut beside, None).await, Some(ErrorCode::InputOutput));
            assert_eq!(flush(&waiting, &mut beside, None).await, None);
        }
        assert_eq!(
            flush(&waiting, &mut again, None).await,
            Some(ErrorCode::InputOutput),
            "beside: {is_beside_another}"
        );
        assert_eq!(flush(&waiting, &mut again, None).await, None);
    }
}
