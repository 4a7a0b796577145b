//! Metrics over HTTP: `GET /metrics` in the OpenMetrics text format, which Prometheus scrapes.
//!
//! This module counts nothing: a scrape asks the process for the status that `forebay status`
//! prints, and [`families`] converts it. So metrics cost nothing without a scrape.
//!
//! Scrapers are few, and none waits for long: a connection beyond the limit replaces the oldest,
//! and a silent one is closed.

use std::future::Future;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use self::scrapers::Scrapers;
use crate::error::{Error, Failure, Result};
use crate::limits::METRICS_WAITING_MAX;
use crate::status::ProcessStatus;

pub mod families;
pub mod plain;
mod scrapers;

/// Of OpenMetrics 1.0.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The channel for the answer to a scrape.
type Question = oneshot::Sender<ProcessStatus>;

/// The machines that may scrape.
#[derive(Clone, Copy, Debug)]
pub enum Reach {
    /// Programs on this machine.
    Loopback {
        /// Advice for a user who wants to allow other machines.
        advice: &'static str,
    },
    /// All machines.
    Everywhere,
}

/// A bound listener for scrapes.
pub struct MetricsServer {
    listener: std::net::TcpListener,
    address: SocketAddr,
}

impl MetricsServer {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// An address that cannot be bound, or that other machines can reach where that is not allowed;
    /// the caller adds advice.
    pub fn bind(address: SocketAddr, reach: Reach) -> Result<Self> {
        if let (false, Reach::Loopback { advice }) = (address.ip().is_loopback(), reach) {
            let message = format!("metrics on {address} could be read from other machines: {advice}");
            return Err(Error::new(Failure::Usage, message));
        }
        let bind = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bind().map_err(|error| Error::io(format!("cannot serve metrics on {address}"), &error))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers scrapes with the result of `status`, until `stop`.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(self, status: impl AsyncFn() -> ProcessStatus, stop: impl Future<Output = ()>) -> Result<()> {
        let failed = |error: &std::io::Error| Error::io("the metrics", error);
        let listener = TcpListener::from_std(self.listener).map_err(|error| failed(&error))?;
        let (questions, mut asked) = mpsc::channel::<Question>(METRICS_WAITING_MAX);
        let router = Router::new().route("/metrics", get(scrape)).with_state(questions);
        let serving = axum::serve(Scrapers::new(listener), router).into_future();
        let answering = async {
            while let Some(question) = asked.recv().await {
                // A scraper that disconnected does not want the answer.
                let _ = question.send(status().await);
            }
        };
        let serving = async {
            tokio::select! {
                served = serving => served.map_err(|error| failed(&error)),
                () = answering => Ok(()),
                () = stop => Ok(()),
            }
        };
        base::background::named("metrics", serving).await
    }
}

async fn scrape(State(questions): State<mpsc::Sender<Question>>) -> Response {
    let (question, answer) = oneshot::channel();
    if questions.send(question).await.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let Ok(status) = answer.await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    match families::render(status) {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
