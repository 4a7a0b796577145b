//! Who may log in to a target, and how they prove it.
//!
//! The rules are a list. For an initiator count those that its name matches, in their order; a rule without accounts is open and ends the
//! list. So the first that counts says whether CHAP is asked for; with CHAP, the first that counts and has the proved user is the
//! initiator's. An initiator for which no rule counts is not allowed here: AUTHORIZATION FAILURE (RFC 7143 11.13.5).

use crate::chap::Credentials;

/// The initiators that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// A whole iSCSI name, or its beginning and then `*`. Names are compared without regard to case (RFC 7143 4.2.7.2).
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether a name is meant.
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            None => self.0.eq_ignore_ascii_case(name),
            Some(start) => {
                name.as_bytes().get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start.as_bytes()))
            }
        }
    }
}

/// One rule.
#[derive(Clone, Debug)]
pub struct AccessRule {
    /// For whom.
    pub initiators: Vec<NamePattern>,
    /// CHAP accounts, one of which must be proved; without any, nobody has to prove anything.
    pub accounts: Vec<Credentials>,
}

impl AccessRule {
    /// For everybody who proves one of `accounts`, or for everybody.
    pub fn everybody(accounts: Vec<Credentials>) -> Self {
        Self { initiators: vec![NamePattern::new("*")], accounts }
    }
}

/// The rules of a target.
#[derive(Clone, Debug)]
pub struct AccessList(pub Vec<AccessRule>);

impl Default for AccessList {
    fn default() -> Self {
        Self(vec![AccessRule::everybody(Vec::new())])
    }
}

impl AccessList {
    /// Whether some rule counts for an initiator.
    pub fn admits(&self, initiator_name: &str) -> bool {
        self.counting(initiator_name).next().is_some()
    }

    /// The accounts of which an initiator must prove one; none where it need not.
    pub fn accounts(&self, initiator_name: &str) -> Vec<Credentials> {
        self.counting(initiator_name).flat_map(|(_, rule)| rule.accounts.iter().cloned()).collect()
    }

    /// The rule of an initiator with the CHAP user it proved.
    pub fn find(&self, initiator_name: &str, user: Option<&str>) -> Option<usize> {
        let is_proved = |rule: &AccessRule| {
            rule.accounts.is_empty() || rule.accounts.iter().any(|known| Some(&*known.name) == user)
        };
        self.counting(initiator_name).find(|(_, rule)| is_proved(rule)).map(|(index, _)| index)
    }

    /// The rules that count, with their places. An open one counts only as the first.
    fn counting<'a>(&'a self, initiator_name: &'a str) -> impl Iterator<Item = (usize, &'a AccessRule)> {
        let matching = move |rule: &AccessRule| rule.initiators.iter().any(|pattern| pattern.matches(initiator_name));
        let mut all = self.0.iter().enumerate().filter(move |(_, rule)| matching(rule));
        let first = all.next();
        let is_open = first.as_ref().is_none_or(|(_, rule)| rule.accounts.is_empty());
        let others = all.take_while(|(_, rule)| !rule.accounts.is_empty());
        first.into_iter().chain(others.take(if is_open { 0 } else { usize::MAX }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chap::Secret;

    fn rule(pattern: &str, users: &[&str]) -> AccessRule {
        let account = |name: &&str| Credentials { name: (*name).to_owned(), secret: Secret::new([7; 16]).unwrap() };
        AccessRule { initiators: vec![NamePattern::new(pattern)], accounts: users.iter().map(account).collect() }
    }

    #[test]
    fn patterns_are_names_or_their_beginnings() {
        assert!(NamePattern::new("iqn.a:Host").matches("IQN.a:host"));
        assert!(!NamePattern::new("iqn.a:host").matches("iqn.a:host2"));
        assert!(NamePattern::new("iqn.a:db-*").matches("iqn.a:DB-7"));
        assert!(!NamePattern::new("iqn.a:db-*").matches("iqn.a:d\u{e9}"));
        assert!(NamePattern::new("*").matches("anybody"));
    }

    #[test]
    fn the_first_rule_that_counts_is_the_initiators() {
        let list = AccessList(vec![
            rule("iqn.a:open", &[]),
            rule("iqn.a:*", &["alice"]),
            rule("*", &["bob", "carol"]),
            rule("*", &[]),
        ]);
        assert_eq!(list.find("iqn.a:open", None), Some(0));
        assert!(list.accounts("iqn.a:open").is_empty());
        assert_eq!(list.find("iqn.a:host", Some("alice")), Some(1));
        assert_eq!(list.find("iqn.a:host", Some("bob")), Some(2));
        assert_eq!(list.find("iqn.a:host", None), None, "an open rule behind one with accounts does not count");
        assert_eq!(list.accounts("iqn.a:host").len(), 3);
        assert_eq!(list.find("iqn.b:host", Some("alice")), None, "it is another rule's account");
        assert!(!AccessList(vec![rule("iqn.a:*", &[])]).admits("iqn.b:host"));
        assert!(AccessList::default().admits("anybody"));
    }
}
