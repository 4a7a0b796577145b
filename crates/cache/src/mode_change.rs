//! Change of the mode while requests go on.

use std::sync::Arc;

use block::Error;

use crate::core::Core;
use crate::mode::Mode;

impl Core {
    /// Changes when writes are acknowledged. To anything but write-back: returns when nothing is dirty any more.
    pub(crate) async fn set_mode(self: &Arc<Self>, mode: Mode) -> Result<(), Error> {
        self.crash_mode.check_mode(mode)?;
        mode.check_shared(self.revocations.is_shared(), self.revocations.may_delay())?;
        {
            let guard = self.exclude_requests().await;
            if !self.life.is_open() {
                // A successor has taken the place of this cache meanwhile.
                return Err(self.life.closed());
            }
            if mode.delays_writes() {
                // What write-through acknowledged becomes durable, as write-back promises for everything acknowledged.
                self.origin.flush().await?;
                // Losses that the origin reports by now concern writes acknowledged in the old
                // mode: the events are passed on while that mode is still set.
                self.handle_origin_events();
                // Clients of write-back need not flush, so a failure not returned to a client by
                // now would never be.
                self.origin.flushes.failures.check_reported()?;
            }
            self.lines.state().mode = mode;
            self.lines.background.notify();
            drop(guard);
        }
        if !mode.delays_writes() {
            self.clean_all(|_| {}).await?;
        }
        Ok(())
    }
}
