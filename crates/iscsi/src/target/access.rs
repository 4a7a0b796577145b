//! Access rules of a target: the initiators that may log in, and their authentication.
//!
//! The rules are a list. For an initiator those rules count that its name matches, in order; a rule
//! without accounts is open and ends the list. So the first rule that counts decides whether CHAP
//! is required; with CHAP, the first that counts and contains the authenticated user is the
//! initiator's rule. An initiator for which no rule counts has no access: AUTHORIZATION FAILURE
//! (RFC 7143 11.13.5).
//!
//! A name in a rule with accounts belongs to these accounts: other matching rules do not count if
//! they match the name less closely. Sessions, reservations and change marks are kept by the name,
//! and a guest's account would otherwise reach those of every name.

use crate::chap::Credentials;

/// The initiators that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// A whole iSCSI name, or its beginning and then `*`. Names are compared without regard to case (RFC 7143 4.2.7.2).
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.closeness(name).is_some()
    }

    /// How closely a name matches: closest as a whole, else by the number of bytes of its
    /// beginning; `None` where it does not match.
    fn closeness(&self, name: &str) -> Option<usize> {
        match self.0.strip_suffix('*') {
            None => self.0.eq_ignore_ascii_case(name).then_some(usize::MAX),
            Some(start) => {
                let head = name.as_bytes().get(..start.len())?;
                head.eq_ignore_ascii_case(start.as_bytes()).then_some(start.len())
            }
        }
    }
}

/// One rule.
#[derive(Clone, Debug)]
pub struct AccessRule {
    /// The initiators that it matches.
    pub initiators: Vec<NamePattern>,
    /// CHAP accounts, one of which must be proved; without any, the rule is open.
    pub accounts: Vec<Credentials>,
}

impl AccessRule {
    /// A rule for any initiator that proves one of `accounts`; without accounts, for every
    /// initiator.
    pub fn any_initiator(accounts: Vec<Credentials>) -> Self {
        Self { initiators: vec![NamePattern::new("*")], accounts }
    }

    /// How closely it matches an initiator; `None` where it does not.
    fn closeness(&self, initiator_name: &str) -> Option<usize> {
        self.initiators.iter().filter_map(|pattern| pattern.closeness(initiator_name)).max()
    }
}

/// The rules of a target.
#[derive(Clone, Debug)]
pub struct AccessList(pub Vec<AccessRule>);

impl Default for AccessList {
    fn default() -> Self {
        Self(vec![AccessRule::any_initiator(Vec::new())])
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
        let with_accounts = self.0.iter().filter(|rule| !rule.accounts.is_empty());
        let least = with_accounts.filter_map(|rule| rule.closeness(initiator_name)).max().unwrap_or(0);
        let is_close =
            move |rule: &AccessRule| rule.closeness(initiator_name).is_some_and(|closeness| closeness >= least);
        let mut all = self.0.iter().enumerate().filter(move |(_, rule)| is_close(rule));
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
        assert_eq!(list.find("iqn.b:host", Some("carol")), Some(2));
        assert_eq!(list.find("iqn.b:host", None), None, "an open rule behind one with accounts does not count");
        assert_eq!(list.accounts("iqn.b:host").len(), 2);
        assert_eq!(list.find("iqn.b:host", Some("alice")), None, "it is another rule's account");
        assert!(!AccessList(vec![rule("iqn.a:*", &[])]).admits("iqn.b:host"));
        assert!(AccessList::default().admits("anybody"));
    }

    #[test]
    fn the_account_of_a_wider_rule_does_not_take_a_name_that_a_rule_with_accounts_names() {
        let list = AccessList(vec![
            rule("*", &["guest"]),
            rule("iqn.a:db-*", &["dora"]),
            rule("iqn.a:db-1", &["alice"]),
            rule("IQN.a:DB-1", &["admin"]),
            rule("iqn.a:*", &["ann"]),
        ]);
        assert_eq!(list.find("iqn.a:db-1", Some("alice")), Some(2));
        assert_eq!(list.find("iqn.a:db-1", Some("admin")), Some(3), "both name it in whole");
        for other in ["guest", "dora", "ann"] {
            assert_eq!(list.find("Iqn.A:db-1", Some(other)), None, "{other} is somebody else");
        }
        let names: Vec<_> = list.accounts("iqn.a:db-1").into_iter().map(|account| account.name).collect();
        assert_eq!(names, ["alice", "admin"], "no other account is even asked for");
        assert_eq!(list.find("iqn.a:db-2", Some("dora")), Some(1), "the longest beginning counts");
        assert_eq!(list.find("iqn.a:db-2", Some("ann")), None);
        assert_eq!(list.find("iqn.a:host", Some("ann")), Some(4));
        assert_eq!(list.find("iqn.b:host", Some("guest")), Some(0));
    }

    #[test]
    fn an_open_rule_neither_takes_a_name_from_accounts_nor_gives_it_away() {
        let wide_first = AccessList(vec![rule("*", &[]), rule("iqn.a:db", &["alice"])]);
        assert_eq!(wide_first.find("iqn.a:db", None), None, "the name is proved by alice alone");
        assert_eq!(wide_first.find("iqn.a:db", Some("alice")), Some(1));
        let accounts_first = AccessList(vec![rule("*", &["guest"]), rule("iqn.a:db", &[])]);
        assert_eq!(accounts_first.find("iqn.a:db", None), None, "who wants to be asked for nothing stands first");
        assert_eq!(accounts_first.find("iqn.a:db", Some("guest")), Some(0));
    }
}
