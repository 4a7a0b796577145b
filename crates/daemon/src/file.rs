//! The file of one attachment: that of `forebay attach --config`, whose name is the attachment's
//! unless it says another one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use stack::attach::AttachConfig;
use stack::paths::{Paths, check_name};
use stack::settings::{Origin, Settings};
use stack::status::start::StartStatus;
use stack::{Error, Failure, Result};

use crate::NAME;

/// The file of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentFile {
    /// The file.
    pub path: PathBuf,
    /// The name of the attachment.
    pub name: String,
    /// The logical units.
    pub url: String,
    /// The texts of each of its settings, as they are in the file.
    pub settings: BTreeMap<&'static str, Vec<String>>,
    /// The target name of its gateways.
    pub gateway: String,
    /// What an attachment is started with by it.
    pub start: StartStatus,
}

impl AttachmentFile {
    /// Parses the text of the file at `path`, and checks that it makes sense as a whole.
    ///
    /// # Errors
    /// A mistake in it, with the file, and with line and key where it has them.
    pub fn parse(text: &str, path: &Path, paths: &Paths) -> Result<Self> {
        let of_file = |error: Error| match error.to_string().contains(&*path.to_string_lossy()) {
            true => error,
            false => error.context(path.display()),
        };
        let mut settings = Settings::default();
        let url = settings.read_text(text, path)?;
        let no_url = || of_file(Error::new(Failure::Usage, "there is no `url` of a logical unit"));
        let url = url.ok_or_else(no_url)?;
        let texts = settings.given().map(|(setting, texts)| (setting.key, texts.into_iter().map(text_of).collect()));
        let mut texts: BTreeMap<&'static str, Vec<String>> = texts.collect();
        texts.remove("name");
        let name = match settings.text("name") {
            Some(name) => name,
            None => {
                let stem = path.file_stem().unwrap_or_default();
                settings.give("name", stem, Origin::Set)?;
                text_of(stem)
            }
        };
        check_name(&name).map_err(of_file)?;
        if name == NAME {
            let message = format!("the name \"{NAME}\" is that of the daemon: give another file name, or a `name`");
            return Err(of_file(Error::new(Failure::Usage, message)));
        }
        let config = AttachConfig::of(&url, settings, paths).map_err(of_file)?;
        let gateway = config.fronts.first().map(|front| front.options.gateway.iqn.clone()).unwrap_or_default();
        Ok(Self { path: path.to_owned(), name, url, settings: texts, gateway, start: config.stack.start_status() })
    }

    /// Whether an attachment of this file is the same as one of `other`.
    pub fn says_the_same(&self, other: &Self) -> bool {
        self.url == other.url && self.settings == other.settings
    }
}

fn text_of(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, text: &str) -> std::result::Result<AttachmentFile, String> {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        AttachmentFile::parse(text, Path::new(name), &paths).map_err(|error| error.to_string())
    }

    const URL: &str = "url = \"iscsi://h/iqn.2026-11.org.example:a/0\"\n";

    #[test]
    fn its_name_is_the_attachments_unless_it_says_one() {
        let file = parse("/etc/forebay/disk.toml", &format!("{URL}connections = 2")).unwrap();
        assert_eq!((file.name.as_str(), file.url.as_str()), ("disk", "iscsi://h/iqn.2026-11.org.example:a/0"));
        assert_eq!(file.settings, BTreeMap::from([("connections", vec!["2".to_owned()])]));
        assert_eq!(parse("disk.toml", &format!("{URL}name = \"web\"")).unwrap().name, "web");
    }

    #[test]
    fn a_gateway_has_the_name_of_its_file_or_one_of_its_own() {
        let gateway = |more: &str| parse("disk.toml", &format!("{URL}front = \"iscsi:3261\"\n{more}")).unwrap().gateway;
        assert!(gateway("").ends_with(":disk"));
        assert_eq!(gateway("iscsi.name = \"IQN.2026-11.org.example:B\""), "iqn.2026-11.org.example:b");
    }

    #[test]
    fn a_mistake_is_named_with_the_file_and_where_it_is() {
        for (name, text, words) in [
            ("a.toml", "connections = 2\n".to_owned(), "a.toml: there is no `url`"),
            ("a.toml", format!("{URL}[cache]\npth = \"c\"\n"), "a.toml, line 3: \"cache.pth\" is no setting"),
            ("a.toml", format!("{URL}connections = \n"), "a.toml, line 2: "),
            ("a.toml", format!("{URL}cache.size = \"1GiB\"\n"), "a.toml, line 2: cache.size needs cache.path"),
            ("a.toml", format!("{URL}front = \"nbt\"\n"), "a.toml, line 2: front nbt: use "),
            ("a.toml", "url = \"http://h\"\n".to_owned(), "a.toml: "),
            ("a b.toml", URL.to_owned(), "a b.toml: \"a b\" is no name"),
            ("-x.toml", URL.to_owned(), "-x.toml: \"-x\" is no name"),
            ("daemon.toml", URL.to_owned(), "that of the daemon"),
        ] {
            let error = parse(name, &text).unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
    }
}
