//! A front is a room of its own: outside the folder `fronts` no code of `stack` names one. Configuration, server,
//! status, metrics, and the table of settings know the trait and the table of kinds only.
//!
//! Comments and what is only for tests do not count.

use std::path::Path;
use std::{fs, iter};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use walkdir::WalkDir;

/// Words that name a front. The gateway's kind is called `iscsi`, a word that the initiator has as well: its settings
/// begin with it.
const NAMES: &[&str] = &["nbd", "nbds", "fuse", "gateway", "gateways", "iscsi."];

/// Files that name one all the same: tables of the whole crate, where a part is looked for.
const TABLES: &[&str] = &["limits.rs", "paths.rs"];

#[test]
fn no_code_of_the_stack_outside_fronts_names_one() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/stack/src"));
    let files = WalkDir::new(source).into_iter().map(|entry| entry.unwrap().into_path());
    let mut found = Vec::new();
    for file in files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let name = file.strip_prefix(source).unwrap();
        let is_of_fronts = name.starts_with("fronts") || name == "fronts.rs";
        let is_of_tests = name.with_extension("").iter().any(|part| part == "tests");
        if !is_of_fronts && !is_of_tests && !TABLES.iter().any(|table| name == Path::new(table)) {
            let names = names_in(&fs::read_to_string(&file).unwrap());
            found.extend(names.into_iter().map(|word| format!("{}: {word}", name.display())));
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_front_is_found_in_names_and_texts_and_not_in_comments_and_tests() {
    let code = r##"
        //! NBD of a module.
        /// An NBD server.
        #[derive(Debug)]
        struct NbdThing { fuse_file: u8, fuser: &'static str, refused: bool }
        fn f() { g("see --as fuse:PATH", "iscsi.name", "iscsi://a", r"iSCSI", "refused") }
        #[cfg(test)]
        mod tests { const NBD: &str = "nbd"; }
        #[cfg(test)]
        use front::Nbd;
        fn take_gateway() {}
    "##;
    assert_eq!(names_in(code), ["NbdThing", "fuse_file", "\"see --as fuse:PATH\"", "\"iscsi.name\"", "take_gateway"]);
}

/// Identifiers and texts in which a word names a front.
fn names_in(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    collect(code.parse().unwrap(), &mut found);
    found
}

fn collect(tokens: TokenStream, found: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                let _ = tokens.next_if(|next| matches!(next, TokenTree::Punct(inner) if inner.as_char() == '!'));
                match tokens.next() {
                    Some(TokenTree::Group(attribute)) if is_for_tests(&attribute.stream()) => skip_item(&mut tokens),
                    Some(TokenTree::Group(attribute)) if !is_comment(&attribute.stream()) => {
                        collect(attribute.stream(), found);
                    }
                    _ => {}
                }
            }
            TokenTree::Group(group) => collect(group.stream(), found),
            TokenTree::Punct(_) => {}
            word => found.extend(Some(word.to_string()).filter(|text| names_one(text))),
        }
    }
}

fn names_one(text: &str) -> bool {
    let is_setting = |word: &&str| word.ends_with('.') && text.to_lowercase().contains(&format!("\"{word}"));
    NAMES.iter().any(is_setting) || words_of(text).iter().any(|word| NAMES.contains(&word.as_str()))
}

/// The words of an identifier or a text, in small letters.
fn words_of(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let before = iter::once('_').chain(text.chars());
    for (before, letter) in before.zip(text.chars()) {
        if !letter.is_alphanumeric() || (letter.is_uppercase() && before.is_lowercase()) {
            words.push(String::new());
        }
        let last = words.last_mut().expect("there is one from the beginning");
        last.extend(letter.to_lowercase().filter(|letter| letter.is_alphanumeric()));
    }
    words
}

fn is_comment(attribute: &TokenStream) -> bool {
    matches!(attribute.clone().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc")
}

fn is_for_tests(attribute: &TokenStream) -> bool {
    attribute.to_string().replace(' ', "") == "cfg(test)"
}

/// An item ends with its braces or a semicolon.
fn skip_item(tokens: &mut impl Iterator<Item = TokenTree>) {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => mark.as_char() == ';',
        _ => false,
    };
    let _ = tokens.find(is_end);
}
