//! The crashes that a test tries, and how one of them is repeated.
//!
//! | variable | meaning |
//! |---|---|
//! | `FOREBAY_SEEDS` | how many seeds a test takes instead of its own few: a soak |
//! | `FOREBAY_SEED` | the one seed to take |
//! | `FOREBAY_CRASH_AT` | the one crash to try with each seed: the write's number, or that of another event |
//!
//! A test that fails prints the command that repeats the failing crash alone.

use std::env;
use std::fmt::Write as _;

/// Fewest crashes of a test by default: a workload with fewer writes tests nothing.
const CRASHES_MIN: u64 = 10;

/// One test that tries crashes. Made by [`crash_test!`](crate::crash_test), which fills in the
/// test's name.
pub struct CrashTest {
    package: &'static str,
    target: &'static str,
    /// Fewest crashes; with fewer the test fails.
    crashes_min: u64,
    wanted: Wanted,
}

/// The variables of the environment.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    seeds: Option<u64>,
    seed: Option<u64>,
    crash_at: Option<u64>,
}

impl Wanted {
    fn from_environment() -> Self {
        let number = |name| {
            let text = env::var(name).ok()?;
            Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
        };
        Self { seeds: number("FOREBAY_SEEDS"), seed: number("FOREBAY_SEED"), crash_at: number("FOREBAY_CRASH_AT") }
    }
}

impl CrashTest {
    /// Use [`crash_test!`](crate::crash_test): `package` and `target` are what `cargo test -p` and `--test` call it.
    ///
    /// # Panics
    /// When one of the variables is no number.
    pub fn new(package: &'static str, target: &'static str) -> Self {
        Self { package, target, crashes_min: CRASHES_MIN, wanted: Wanted::from_environment() }
    }

    /// For a workload with so few writes that each seed has only these crashes: an opening, a
    /// change of a superblock.
    #[must_use]
    pub fn of_few_crashes(self, crashes_min: u64) -> Self {
        Self { crashes_min, ..self }
    }

    /// `count` seeds, from `first` on with `step` between them; in a soak as many as it wants; or
    /// the one to be repeated.
    pub fn seeds(&self, first: u64, count: u64, step: u64) -> impl Iterator<Item = u64> + use<> {
        let Wanted { seeds, seed, .. } = self.wanted;
        let count = if seed.is_some() { 1 } else { seeds.unwrap_or(count) };
        (0..count).map(move |index| seed.unwrap_or(first + index * step))
    }

    /// Whether [`seeds`](Self::seeds) gives its own few: what a test counts over all of them holds for no others.
    pub fn has_own_seeds(&self) -> bool {
        self.wanted.seeds.is_none() && self.wanted.seed.is_none()
    }

    /// Calls `run` with 0, 1, 2 and so on, until it returns that nothing crashed any more; or with the one to be
    /// repeated. `seed` is the one of [`seeds`](Self::seeds) from which all else in the run follows.
    ///
    /// # Panics
    /// When `run` does, having printed how to repeat it; when there are so few crashes that nothing was tested; or more
    /// than `crashes_max`.
    pub fn crash_at_every(&self, seed: u64, crashes_max: u64, mut run: impl FnMut(u64) -> bool) {
        if let Some(nth) = self.wanted.crash_at {
            let _printed = self.on_panic(seed, Some(nth));
            let has_crashed = run(nth);
            println!(
                "seed {seed}, crash {nth}: {}",
                if has_crashed { "crashed, and is well" } else { "came to its end" }
            );
            return;
        }
        for nth in 0..crashes_max {
            let _printed = self.on_panic(seed, Some(nth));
            if !run(nth) {
                // Of the seeds of a soak some write little, and many write enough.
                let is_enough = nth >= self.crashes_min || self.wanted.seeds.is_some() || self.wanted.seed.is_some();
                assert!(is_enough, "a workload that can crash at {nth} places tests nothing");
                return;
            }
        }
        panic!("the workload of seed {seed} still crashed at {crashes_max}: raise the bound or look for a write loop");
    }

    /// Prints the command that repeats this run if the test panics while the returned value lives.
    /// For tests that do not fit [`crash_at_every`](Self::crash_at_every).
    #[must_use = "it prints when it is dropped in a panic"]
    pub fn on_panic(&self, seed: u64, crash_at: Option<u64>) -> OnPanic {
        OnPanic { command: self.command(seed, crash_at) }
    }

    fn command(&self, seed: u64, crash_at: Option<u64>) -> String {
        let mut command = format!("FOREBAY_SEED={seed} ");
        if let Some(crash_at) = crash_at {
            let _ = write!(command, "FOREBAY_CRASH_AT={crash_at} ");
        }
        // Tests inside a crate have a target of its name.
        let is_inside = self.target == self.package.replace('-', "_");
        let target = if is_inside { "--lib".to_owned() } else { format!("--test {}", self.target) };
        let _ = write!(command, "cargo test -p {} {target}", self.package);
        // The thread of a test is named after it.
        if let Some(name) = std::thread::current().name().filter(|name| *name != "main") {
            let _ = write!(command, " -- --exact {name}");
        }
        command
    }
}

/// Prints the command that repeats a run, on a panic; see [`CrashTest::on_panic`].
pub struct OnPanic {
    command: String,
}

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("\nto repeat this one alone: {}\n", self.command);
        }
    }
}

/// The [`CrashTest`](crate::layer::crash::CrashTest) of the test that calls this.
#[macro_export]
macro_rules! crash_test {
    () => {
        $crate::layer::crash::CrashTest::new(env!("CARGO_PKG_NAME"), env!("CARGO_CRATE_NAME"))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_with(wanted: Wanted) -> CrashTest {
        CrashTest { package: "write-log", target: "power_loss", crashes_min: CRASHES_MIN, wanted }
    }

    #[test]
    fn a_test_takes_its_own_seeds_those_of_a_soak_or_the_one_to_be_repeated() {
        let seeds = |wanted| test_with(wanted).seeds(7, 3, 100).collect::<Vec<_>>();
        assert_eq!(seeds(Wanted::default()), [7, 107, 207]);
        assert_eq!(seeds(Wanted { seeds: Some(5), ..Wanted::default() }), [7, 107, 207, 307, 407]);
        assert_eq!(seeds(Wanted { seeds: Some(5), seed: Some(42), ..Wanted::default() }), [42]);
        let has_own = |wanted| test_with(wanted).has_own_seeds();
        assert!(has_own(Wanted { crash_at: Some(3), ..Wanted::default() }));
        assert!(!has_own(Wanted { seeds: Some(3), ..Wanted::default() }));
        assert!(!has_own(Wanted { seed: Some(3), ..Wanted::default() }));
    }

    #[test]
    fn crashes_are_tried_until_none_is_left_or_one_alone() {
        let tried_of = |crashes_min, wanted, bound| {
            let mut tried = Vec::new();
            test_with(wanted).of_few_crashes(crashes_min).crash_at_every(1, 50, |nth| {
                tried.push(nth);
                nth < bound
            });
            tried
        };
        let tried = |wanted, bound| tried_of(CRASHES_MIN, wanted, bound);
        assert_eq!(tried(Wanted::default(), 12), (0..=12).collect::<Vec<_>>());
        assert_eq!(tried(Wanted { crash_at: Some(4), ..Wanted::default() }, 12), [4]);
        assert!(std::panic::catch_unwind(|| tried(Wanted::default(), 3)).is_err(), "three crashes test nothing");
        assert_eq!(tried_of(3, Wanted::default(), 3), [0, 1, 2, 3], "unless they are all there are");
        assert!(std::panic::catch_unwind(|| tried(Wanted::default(), 100)).is_err(), "it never ends");
    }

    #[test]
    fn the_command_repeats_this_test_alone() {
        let test = test_with(Wanted::default());
        let here = "layer::crash::replay::tests::the_command_repeats_this_test_alone";
        let expected =
            format!("FOREBAY_SEED=3 FOREBAY_CRASH_AT=9 cargo test -p write-log --test power_loss -- --exact {here}");
        assert_eq!(test.command(3, Some(9)), expected);
        let inside = CrashTest { target: "write_log", ..test };
        assert!(inside.command(3, None).starts_with("FOREBAY_SEED=3 cargo test -p write-log --lib -- --exact"));
    }
}
