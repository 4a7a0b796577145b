//! Options of the command line that are settings: made of the table in `stack::settings`, and read back into settings.

use std::ffi::OsString;
use std::marker::PhantomData;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use stack::Result;
use stack::settings::kind::Kind;
use stack::settings::setting::{Part, Setting, Unset};
use stack::settings::table::rows;
use stack::settings::{Origin, Settings};

/// Which settings a command has options for.
pub trait Options: Send + Sync + 'static {
    /// Whether there is an option for this one.
    fn has(setting: &Setting) -> bool;

    /// Whether the help names it.
    fn shows(setting: &Setting) -> bool;
}

/// How to log in.
#[derive(Debug)]
pub struct LoginOptions;

impl Options for LoginOptions {
    fn has(setting: &Setting) -> bool {
        setting.part == Part::Login
    }

    fn shows(_: &Setting) -> bool {
        true
    }
}

/// How several logical units are one device.
#[derive(Debug)]
pub struct ArrangementOptions;

impl Options for ArrangementOptions {
    fn has(setting: &Setting) -> bool {
        setting.part == Part::Arrangement
    }

    fn shows(_: &Setting) -> bool {
        true
    }
}

/// All that an attachment has.
#[derive(Debug)]
pub struct AttachOptions;

impl Options for AttachOptions {
    fn has(_: &Setting) -> bool {
        true
    }

    fn shows(setting: &Setting) -> bool {
        setting.is_basic
    }
}

/// The options given on the command line or in the environment, with their texts as given.
#[derive(Debug)]
pub struct Given<O> {
    entries: Vec<(&'static str, OsString, Origin)>,
    options: PhantomData<O>,
}

impl<O> Default for Given<O> {
    fn default() -> Self {
        Self { entries: Vec::new(), options: PhantomData }
    }
}

impl<O> Given<O> {
    /// Adds the options to `settings`.
    ///
    /// # Errors
    /// A value that its setting does not accept, or one that was given before.
    pub fn give_to(&self, settings: &mut Settings) -> Result<()> {
        self.entries.iter().try_for_each(|(key, text, origin)| settings.give(key, text, origin.clone()))
    }
}

/// The settings given by the options of a command for logical units.
///
/// # Errors
/// As [`Given::give_to`]; settings that do not fit together.
pub fn settings(login: &Given<LoginOptions>, arrangement: &Given<ArrangementOptions>) -> Result<Settings> {
    let mut settings = Settings::default();
    login.give_to(&mut settings)?;
    arrangement.give_to(&mut settings)?;
    settings.check().map(|()| settings)
}

impl<O: Options> Args for Given<O> {
    fn augment_args(command: Command) -> Command {
        let rows = rows().filter(|setting| O::has(setting));
        rows.fold(command, |command, setting| match setting.flag {
            Some(flag) => command.arg(argument(setting, flag, O::shows(setting))),
            None => command,
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<O: Options> FromArgMatches for Given<O> {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let mut entries = Vec::new();
        for (setting, flag) in rows().filter(|setting| O::has(setting)).filter_map(|row| Some((row, row.flag?))) {
            let origin = match (matches.value_source(setting.key), setting.variable) {
                (Some(ValueSource::CommandLine), _) => Origin::Flag(flag),
                (Some(ValueSource::EnvVariable), Some(variable)) => Origin::Environment(variable),
                _ => continue,
            };
            let texts: Vec<OsString> = match is_plain(setting) {
                true => vec!["on".into()],
                false => matches.get_many::<OsString>(setting.key).into_iter().flatten().cloned().collect(),
            };
            entries.extend(texts.into_iter().map(|text| (setting.key, text, origin.clone())));
        }
        Ok(Self { entries, options: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Whether the option takes no value and switches its setting on; without it the setting is off.
fn is_plain(setting: &Setting) -> bool {
    matches!((&setting.kind, setting.unset), (Kind::Switch, Unset::Value(_)))
}

/// The option of a setting. Its value is checked by the table, which refuses values in a file in
/// the same words.
fn argument(setting: &'static Setting, flag: &'static str, is_shown: bool) -> Arg {
    let argument = Arg::new(setting.key).long(flag).help(in_a_line(setting)).hide(!is_shown);
    let argument = setting.old_flag.into_iter().fold(argument, |argument, old| argument.alias(old));
    let argument = match setting.variable {
        Some(variable) => argument.env(variable).hide_env_values(true),
        None => argument,
    };
    if is_plain(setting) {
        return argument.action(ArgAction::SetTrue);
    }
    let argument = argument.value_name(setting.kind.word()).value_parser(clap::value_parser!(OsString));
    let argument = argument.action(if setting.is_list { ArgAction::Append } else { ArgAction::Set });
    match setting.kind {
        Kind::Switch => argument.num_args(0..=1).require_equals(true).default_missing_value("on"),
        _ => argument,
    }
}

/// The help of an option, in a line.
fn in_a_line(setting: &Setting) -> String {
    let mut words = setting.help.to_owned();
    if let Kind::Choice(_) = setting.kind {
        words += &format!(": {}", setting.kind.values());
    }
    match setting.default_in_words() {
        "" => {}
        _ if is_plain(setting) => {}
        default => words += &format!(" (default: {default})"),
    }
    words
}
