//! A panic anywhere ends the process.
//!
//! A background task or thread that panics ends alone, and its waiters wait for ever: a silent
//! hang, with writes accepted that no task carries on. Acknowledged data survives the end of a
//! process at any moment, so ending it is better. It ends quickly (`abort`): nothing more is
//! acknowledged, no destructor writes anything, and the service manager starts the process anew.

use std::panic::PanicHookInfo;

/// Installs the panic hook.
pub fn end_the_process() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        // A failed print, as through a pipe whose reader (`head`) has ended, is no defect; it ends
        // the command by the usual panic.
        if !is_of_print(info) {
            eprintln!("forebay: this is a defect of forebay; what was acknowledged is safe: start it again");
            std::process::abort();
        }
    }));
    planted::plant();
}

fn is_of_print(info: &PanicHookInfo<'_>) -> bool {
    info.payload_as_str().is_some_and(|text| text.starts_with("failed printing to std"))
}

/// A panic on purpose, for tests: `FOREBAY_UNSAFE_PANIC_IN=NAME:PATH`.
mod planted {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    static PLANTED: OnceLock<(String, PathBuf)> = OnceLock::new();

    pub fn plant() {
        let Ok(text) = std::env::var("FOREBAY_UNSAFE_PANIC_IN") else { return };
        let (name, path) = text.split_once(':').expect("FOREBAY_UNSAFE_PANIC_IN is NAME:PATH");
        let _ = PLANTED.set((name.to_owned(), path.into()));
        base::background::observe(|name| {
            let is_due = PLANTED.get().is_some_and(|(planted, path)| planted == name && path.exists());
            assert!(!is_due, "planted in {name}");
        });
    }
}
