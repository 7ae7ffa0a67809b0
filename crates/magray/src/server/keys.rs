//! Keys of users and of administrators, compared in constant time, and what each may do.
//! Keeps no key, only its digest, and never prints one.

use std::sync::Arc;

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::errors::{Kind, Problem};
use crate::config::WrittenKey;

#[derive(Clone, Default)]
pub(crate) struct Keys {
    users: Vec<Known>,
    admins: Vec<Known>,
}

#[derive(Clone, PartialEq, Eq)]
struct Known {
    digest: [u8; 32],
    name: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The index of the key, those of users first; `None` without a key.
    pub(crate) key: Option<usize>,
    pub(crate) name: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    None,
    Unknown,
    Known(Caller),
}

/// What a route or tool does, and so what it asks of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    /// Reads: a key, where there are keys of users.
    Read,
    /// Reads, and takes a place in the queue, which may be full.
    Compute,
    /// Changes something: a key of an administrator, or a caller on this machine where there is no key at all.
    Change,
}

impl Keys {
    pub(crate) fn new(users: &[WrittenKey], admins: &[WrittenKey]) -> Self {
        let known = |keys: &[WrittenKey], kind: &str| {
            let numbered = keys.iter().zip(1..);
            let named = numbered.map(|(key, number): (_, usize)| Known {
                digest: digest(key.secret().as_bytes()),
                name: key.name().map_or_else(|| format!("{kind}-{number}"), str::to_owned).into(),
            });
            named.collect()
        };
        Self { users: known(users, "user"), admins: known(admins, "admin") }
    }

    pub(crate) fn differ(&self, other: &Self) -> (bool, bool) {
        (self.users != other.users, self.admins != other.admins)
    }

    pub(crate) fn len(&self) -> usize {
        self.users.len() + self.admins.len()
    }

    /// The keys that were there before too: their indices now and before.
    pub(crate) fn also_in(&self, before: &Self) -> Vec<(usize, usize)> {
        let known: Vec<_> = before.users.iter().chain(&before.admins).collect();
        let own = self.users.iter().chain(&self.admins).enumerate();
        own.filter_map(|(index, key)| Some((index, known.iter().position(|other| *other == key)?))).collect()
    }

    pub(crate) fn are_needed(&self, access: Access) -> bool {
        match access {
            Access::Open => false,
            Access::Read | Access::Compute => !self.users.is_empty(),
            Access::Change => self.len() > 0,
        }
    }

    pub(crate) fn identify(&self, headers: &HeaderMap) -> Credential {
        let Some(key) = key_of(headers) else { return Credential::None };
        if self.len() == 0 {
            return Credential::Unknown;
        }
        self.find(key).map_or(Credential::Unknown, |(index, name)| {
            Credential::Known(Caller { key: Some(index), name: Some(Arc::clone(name)) })
        })
    }

    pub(crate) fn is_admin(&self, caller: &Caller) -> bool {
        caller.key.is_some_and(|key| key >= self.users.len())
    }

    /// Whether a request with this key may do what needs such access. `is_local`: it came from this machine.
    pub(crate) fn admit(&self, credential: Credential, access: Access, is_local: bool) -> Result<Caller, Problem> {
        let refuse = |kind, message: &str| Err(Problem::new(kind, message));
        match credential {
            Credential::Known(caller) if access == Access::Change && !self.is_admin(&caller) => {
                let name = caller.name.as_deref().unwrap_or_default();
                refuse(Kind::Forbidden, &format!("this needs a key of an administrator, and '{name}' is a user's"))
            }
            Credential::Known(caller) => Ok(caller),
            Credential::None if self.are_needed(access) => {
                refuse(Kind::Unauthorised, "this needs a key: send it as `Authorization: Bearer KEY`")
            }
            Credential::Unknown if self.are_needed(access) => refuse(Kind::Unauthorised, "the key is not known"),
            Credential::None | Credential::Unknown if access == Access::Change && !is_local => refuse(
                Kind::Forbidden,
                "without keys only loopback callers may change anything: call from the server's machine by localhost, or \
                 set MAGRAY_ADMIN_KEYS or server.admin_keys_file and send such a key",
            ),
            // Some clients always send a key.
            Credential::None | Credential::Unknown => Ok(Caller::default()),
        }
    }

    /// The index and name of a key. All keys are compared, whichever is right, so that the time tells nothing.
    fn find(&self, key: &[u8]) -> Option<(usize, &Arc<str>)> {
        let digest = digest(key);
        let mut found = None;
        for (index, known) in self.users.iter().chain(&self.admins).enumerate() {
            let is_equal: Choice = known.digest.ct_eq(&digest);
            if bool::from(is_equal) {
                found = Some((index, &known.name));
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
    let others = || ["x-api-key", "api-key"].iter().find_map(|name| headers.get(*name));
    bearer.or_else(|| others().map(|value| value.as_bytes().trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_keys;

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
        assert_eq!(admit("authorization", "Bearer two", Access::Read), Ok(caller(1, "user-2")));
        assert_eq!(admit("x-api-key", "one", Access::Read), Ok(caller(0, "user-1")));
        assert_eq!(admit("api-key", "one", Access::Read), Ok(caller(0, "user-1")));
        assert_eq!(admit("authorization", "bearer boss", Access::Read), Ok(caller(2, "admin-1")));
        assert_eq!(admit("authorization", "Bearer boss", Access::Change), Ok(caller(2, "admin-1")));
        assert_eq!(admit("authorization", "Bearer one", Access::Change), Err(Kind::Forbidden));
        for wrong in ["Bearer on", "Bearer onee", "Bearer ", "Basic one", "one"] {
            assert_eq!(admit("authorization", wrong, Access::Read), Err(Kind::Unauthorised), "{wrong}");
        }
    }

    #[test]
    fn without_keys_every_caller_and_every_key_is_admitted() {
        let none = keys(&[], &[]);
        for access in [Access::Open, Access::Read, Access::Compute, Access::Change] {
            assert!(admit(&none, &HeaderMap::new(), access).is_ok());
            assert!(admit(&none, &headers("authorization", "Bearer sk-any"), access).is_ok());
        }
    }

    #[test]
    fn without_keys_only_this_machine_may_change_anything() {
        let none = keys(&[], &[]);
        for credential in [Credential::None, Credential::Unknown] {
            assert!(none.admit(credential.clone(), Access::Read, false).is_ok());
            let refused = none.admit(credential, Access::Change, false).unwrap_err();
            assert!(refused.kind == Kind::Forbidden && refused.message.contains("MAGRAY_ADMIN_KEYS"), "{refused}");
        }
        let keys = keys(&[], &["boss"]);
        assert!(keys.admit(keys.identify(&headers("x-api-key", "boss")), Access::Change, false).is_ok());
        assert!(keys.admit(Credential::None, Access::Change, true).is_err(), "there is a key");
    }

    #[test]
    fn an_administrators_key_leaves_computing_open() {
        let keys = keys(&[], &["boss"]);
        assert!(admit(&keys, &HeaderMap::new(), Access::Read).is_ok());
        assert!(admit(&keys, &headers("authorization", "Bearer any"), Access::Read).is_ok());
        assert!(admit(&keys, &HeaderMap::new(), Access::Change).is_err());
        assert!(admit(&keys, &headers("authorization", "Bearer any"), Access::Change).is_err());
    }

    #[test]
    fn with_keys_of_users_only_nothing_can_be_changed() {
        let keys = keys(&["one"], &[]);
        assert!(admit(&keys, &HeaderMap::new(), Access::Change).is_err());
        assert_eq!(
            admit(&keys, &headers("authorization", "Bearer one"), Access::Change).unwrap_err().kind,
            Kind::Forbidden
        );
    }

    #[test]
    fn a_key_may_have_a_name_for_the_log() {
        let keys = Keys::new(&read_keys("secret # Ann's laptop\x07\nother #\n"), &[]);
        let name = |key: &str| admit(&keys, &headers("x-api-key", key), Access::Read).unwrap().name.unwrap();
        assert_eq!((&*name("secret"), &*name("other")), ("Ann's laptop", "user-2"));
    }
}
