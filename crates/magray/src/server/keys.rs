//! Who may ask: keys of users and of administrators, compared in constant time.
//! Keeps no key, only its digest, and never prints one.

use std::sync::Arc;

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::errors::{Kind, Problem};

/// All keys of the server.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    users: Vec<Known>,
    admins: Vec<Known>,
}

/// A key that is known.
#[derive(Clone, PartialEq, Eq)]
struct Known {
    digest: [u8; 32],
    /// What the log calls it.
    name: Arc<str>,
}

/// A key as it was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenKey {
    secret: String,
    /// What its owner calls it, to be told apart in the log.
    name: Option<String>,
}

/// Whoever asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The place of the key among all keys, those of users first; `None` without a key.
    pub(crate) key: Option<usize>,
    /// What the log calls the key: never the key itself.
    pub(crate) name: Option<Arc<str>>,
}

/// Letters of a key's name that the log shows.
const NAME_MAX: usize = 64;

/// What a request has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Nothing,
    Unknown,
    Known(Caller),
}

/// What a route or tool asks of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads and computes: a key, where there are keys of users.
    User,
    /// Changes something: a key of an administrator, or a caller on this machine where there is no key at all.
    Admin,
}

impl WrittenKey {
    /// A key that the log calls by its number.
    pub(crate) fn unnamed(secret: String) -> Self {
        Self { secret, name: None }
    }
}

impl Keys {
    pub(crate) fn new(users: &[WrittenKey], admins: &[WrittenKey]) -> Self {
        let known = |keys: &[WrittenKey], kind: &str| {
            let numbered = keys.iter().zip(1..);
            let named = numbered.map(|(key, number): (_, usize)| Known {
                digest: digest(key.secret.as_bytes()),
                name: key.name.clone().unwrap_or_else(|| format!("{kind}-{number}")).into(),
            });
            named.collect()
        };
        Self { users: known(users, "user"), admins: known(admins, "admin") }
    }

    /// Whether the keys of users, and those of administrators, are other than these.
    pub(crate) fn differ(&self, other: &Self) -> (bool, bool) {
        (self.users != other.users, self.admins != other.admins)
    }

    /// How many keys there are.
    pub(crate) fn len(&self) -> usize {
        self.users.len() + self.admins.len()
    }

    /// The keys that were there before too: their places, now and before.
    pub(crate) fn also_in(&self, before: &Self) -> Vec<(usize, usize)> {
        let known: Vec<_> = before.users.iter().chain(&before.admins).collect();
        let own = self.users.iter().chain(&self.admins).enumerate();
        own.filter_map(|(place, key)| Some((place, known.iter().position(|other| *other == key)?))).collect()
    }

    /// Whether anybody may compute.
    pub(crate) fn is_open(&self) -> bool {
        self.users.is_empty()
    }

    /// Whether such access needs a key here.
    pub(crate) fn are_needed(&self, access: Access) -> bool {
        match access {
            Access::User => !self.users.is_empty(),
            Access::Admin => self.len() > 0,
        }
    }

    /// The key that a request carries.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Given {
        let Some(key) = key_of(headers) else { return Given::Nothing };
        if self.len() == 0 {
            return Given::Unknown;
        }
        self.find(key).map_or(Given::Unknown, |(place, name)| {
            Given::Known(Caller { key: Some(place), name: Some(Arc::clone(name)) })
        })
    }

    /// Whether a request with this key may do what needs such access. `is_local`: it came from this machine.
    pub(crate) fn admit(&self, given: Given, access: Access, is_local: bool) -> Result<Caller, Problem> {
        let refuse = |kind, message: &str| Err(Problem::new(kind, message));
        match given {
            Given::Known(caller) if access == Access::Admin && caller.key.is_none_or(|key| key < self.users.len()) => {
                refuse(Kind::Forbidden, "this needs a key of an administrator")
            }
            Given::Known(caller) => Ok(caller),
            Given::Nothing if self.are_needed(access) => {
                refuse(Kind::Unauthorised, "this needs a key: send it as `Authorization: Bearer KEY`")
            }
            Given::Unknown if self.are_needed(access) => refuse(Kind::Unauthorised, "the key is not known"),
            Given::Nothing | Given::Unknown if access == Access::Admin && !is_local => refuse(
                Kind::Forbidden,
                "without keys only loopback callers may change anything: call from the server's machine by localhost, or \
                 set MAGRAY_ADMIN_KEYS or server.admin_keys_file and send such a key",
            ),
            // Clients that cannot do without a key send any.
            Given::Nothing | Given::Unknown => Ok(Caller::default()),
        }
    }

    /// The place and name of a key. All keys are compared, whichever is right, so that the time tells nothing.
    fn find(&self, key: &[u8]) -> Option<(usize, &Arc<str>)> {
        let given = digest(key);
        let mut found = None;
        for (place, known) in self.users.iter().chain(&self.admins).enumerate() {
            let is_equal: Choice = known.digest.ct_eq(&given);
            if bool::from(is_equal) {
                found = Some((place, &known.name));
            }
        }
        found
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

fn key_of(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()))
}

/// Keys written one a line, or with commas between. What follows ` #` is the name of the line's key; blank lines and
/// lines that begin with `#` are passed over.
pub(crate) fn read_keys(text: &str) -> Vec<WrittenKey> {
    text.lines().filter(|line| !line.trim_start().starts_with('#')).flat_map(keys_of_line).collect()
}

fn keys_of_line(line: &str) -> Vec<WrittenKey> {
    let (keys, name) = line.split_once(" #").unwrap_or((line, ""));
    let name: String = name.trim().chars().filter(|letter| !letter.is_control()).take(NAME_MAX).collect();
    let keys = keys.split(',').map(str::trim).filter(|key| !key.is_empty());
    let written =
        |key: &str| WrittenKey { secret: key.to_owned(), name: Some(name.clone()).filter(|name| !name.is_empty()) };
    keys.map(written).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        [(http::HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect()
    }

    fn keys(users: &[&str], admins: &[&str]) -> Keys {
        Keys::new(&read_keys(&users.join(",")), &read_keys(&admins.join(",")))
    }

    fn admit(keys: &Keys, headers: &HeaderMap, access: Access) -> Result<Caller, Problem> {
        keys.admit(keys.identify(headers), access, true)
    }

    fn caller(key: usize, name: &str) -> Caller {
        Caller { key: Some(key), name: Some(name.into()) }
    }

    #[test]
    fn the_right_key_opens_and_others_do_not() {
        let keys = keys(&["one", "two"], &["boss"]);
        let admit = |name, value, access| admit(&keys, &headers(name, value), access).map_err(|problem| problem.kind);
        assert_eq!(admit("authorization", "Bearer two", Access::User), Ok(caller(1, "user-2")));
        assert_eq!(admit("x-api-key", "one", Access::User), Ok(caller(0, "user-1")));
        assert_eq!(admit("authorization", "bearer boss", Access::User), Ok(caller(2, "admin-1")));
        assert_eq!(admit("authorization", "Bearer boss", Access::Admin), Ok(caller(2, "admin-1")));
        assert_eq!(admit("authorization", "Bearer one", Access::Admin), Err(Kind::Forbidden));
        for wrong in ["Bearer on", "Bearer onee", "Bearer ", "Basic one", "one"] {
            assert_eq!(admit("authorization", wrong, Access::User), Err(Kind::Unauthorised), "{wrong}");
        }
    }

    #[test]
    fn without_keys_everybody_may_and_any_key_does() {
        let none = keys(&[], &[]);
        for access in [Access::User, Access::Admin] {
            assert!(admit(&none, &HeaderMap::new(), access).is_ok());
            assert!(admit(&none, &headers("authorization", "Bearer sk-any"), access).is_ok());
        }
    }

    #[test]
    fn without_keys_only_this_machine_may_change_anything() {
        let none = keys(&[], &[]);
        for given in [Given::Nothing, Given::Unknown] {
            assert!(none.admit(given.clone(), Access::User, false).is_ok());
            let refused = none.admit(given, Access::Admin, false).unwrap_err();
            assert!(refused.kind == Kind::Forbidden && refused.message.contains("MAGRAY_ADMIN_KEYS"), "{refused}");
        }
        let keys = keys(&[], &["boss"]);
        assert!(keys.admit(keys.identify(&headers("x-api-key", "boss")), Access::Admin, false).is_ok());
        assert!(keys.admit(Given::Nothing, Access::Admin, true).is_err(), "there is a key");
    }

    #[test]
    fn an_administrators_key_alone_leaves_computing_open() {
        let keys = keys(&[], &["boss"]);
        assert!(admit(&keys, &HeaderMap::new(), Access::User).is_ok());
        assert!(admit(&keys, &headers("authorization", "Bearer any"), Access::User).is_ok());
        assert!(admit(&keys, &HeaderMap::new(), Access::Admin).is_err());
        assert!(admit(&keys, &headers("authorization", "Bearer any"), Access::Admin).is_err());
    }

    #[test]
    fn with_keys_of_users_alone_nobody_administers() {
        let keys = keys(&["one"], &[]);
        assert!(admit(&keys, &HeaderMap::new(), Access::Admin).is_err());
        assert_eq!(
            admit(&keys, &headers("authorization", "Bearer one"), Access::Admin).unwrap_err().kind,
            Kind::Forbidden
        );
    }

    #[test]
    fn keys_stand_on_lines_or_between_commas() {
        let read = |text| -> Vec<String> { read_keys(text).into_iter().map(|key| key.secret).collect() };
        assert_eq!(read("a, b\n# no\n\n  c  \n"), ["a", "b", "c"]);
        assert_eq!(read("a#b"), ["a#b"], "a key may have the sign in it");
    }

    #[test]
    fn a_key_may_have_a_name_for_the_log() {
        let keys = Keys::new(&read_keys("secret # Ann's laptop\x07\nother #\n"), &[]);
        let name = |key: &str| admit(&keys, &headers("x-api-key", key), Access::User).unwrap().name.unwrap();
        assert_eq!((&*name("secret"), &*name("other")), ("Ann's laptop", "user-2"));
    }
}
