//! Who may ask: keys of users and of administrators, compared in constant time.
//! Keeps no key, only its digest, and never prints one.

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::errors::{Kind, Problem};

/// All keys of the server.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    users: Vec<[u8; 32]>,
    admins: Vec<[u8; 32]>,
}

/// Whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The place of the key among all keys, those of users first; `None` without a key.
    pub(crate) key: Option<usize>,
}

/// What a route asks of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A key, where there are keys of users.
    User,
    /// A key of an administrator, where there is any key.
    Admin,
}

impl Keys {
    pub(crate) fn new(users: &[String], admins: &[String]) -> Self {
        let digests = |keys: &[String]| keys.iter().map(|key| digest(key.as_bytes())).collect();
        Self { users: digests(users), admins: digests(admins) }
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

    /// Whether this request may do what needs such access.
    pub(crate) fn admit(&self, headers: &HeaderMap, access: Access) -> Result<Caller, Problem> {
        let Some(key) = key_of(headers) else {
            let is_free = match access {
                Access::User => self.users.is_empty(),
                Access::Admin => self.len() == 0,
            };
            let missing = "this needs a key: send it as `Authorization: Bearer KEY`";
            return if is_free { Ok(Caller { key: None }) } else { Err(Problem::new(Kind::Unauthorised, missing)) };
        };
        if self.len() == 0 {
            // Clients that cannot do without a key send any.
            return Ok(Caller { key: None });
        }
        match self.find(key) {
            Some(place) if access == Access::User || place >= self.users.len() => Ok(Caller { key: Some(place) }),
            Some(_) => Err(Problem::new(Kind::Forbidden, "this needs a key of an administrator")),
            None if access == Access::User && self.users.is_empty() => Ok(Caller { key: None }),
            None => Err(Problem::new(Kind::Unauthorised, "the key is not known")),
        }
    }

    /// The place of a key. All keys are compared, whichever is right, so that the time tells nothing.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let given = digest(key);
        let mut found = None;
        for (place, known) in self.users.iter().chain(&self.admins).enumerate() {
            let is_equal: Choice = known.ct_eq(&given);
            if bool::from(is_equal) {
                found = Some(place);
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

/// Keys written one a line, or with commas between; blank lines and lines after `#` are passed over.
pub(crate) fn read_keys(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let keys = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|key| !key.is_empty());
    keys.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        [(http::HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect()
    }

    fn keys(users: &[&str], admins: &[&str]) -> Keys {
        let owned = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        Keys::new(&owned(users), &owned(admins))
    }

    #[test]
    fn the_right_key_opens_and_others_do_not() {
        let keys = keys(&["one", "two"], &["boss"]);
        let admit = |name, value, access| keys.admit(&headers(name, value), access).map_err(|problem| problem.kind);
        assert_eq!(admit("authorization", "Bearer two", Access::User), Ok(Caller { key: Some(1) }));
        assert_eq!(admit("x-api-key", "one", Access::User), Ok(Caller { key: Some(0) }));
        assert_eq!(admit("authorization", "bearer boss", Access::User), Ok(Caller { key: Some(2) }));
        assert_eq!(admit("authorization", "Bearer boss", Access::Admin), Ok(Caller { key: Some(2) }));
        assert_eq!(admit("authorization", "Bearer one", Access::Admin), Err(Kind::Forbidden));
        for wrong in ["Bearer on", "Bearer onee", "Bearer ", "Basic one", "one"] {
            assert_eq!(admit("authorization", wrong, Access::User), Err(Kind::Unauthorised), "{wrong}");
        }
    }

    #[test]
    fn without_keys_everybody_may_and_any_key_does() {
        let none = keys(&[], &[]);
        for access in [Access::User, Access::Admin] {
            assert!(none.admit(&HeaderMap::new(), access).is_ok());
            assert!(none.admit(&headers("authorization", "Bearer sk-any"), access).is_ok());
        }
    }

    #[test]
    fn an_administrators_key_alone_leaves_computing_open() {
        let keys = keys(&[], &["boss"]);
        assert!(keys.admit(&HeaderMap::new(), Access::User).is_ok());
        assert!(keys.admit(&headers("authorization", "Bearer any"), Access::User).is_ok());
        assert!(keys.admit(&HeaderMap::new(), Access::Admin).is_err());
        assert!(keys.admit(&headers("authorization", "Bearer any"), Access::Admin).is_err());
    }

    #[test]
    fn with_keys_of_users_alone_nobody_administers() {
        let keys = keys(&["one"], &[]);
        assert!(keys.admit(&HeaderMap::new(), Access::Admin).is_err());
        assert_eq!(
            keys.admit(&headers("authorization", "Bearer one"), Access::Admin).unwrap_err().kind,
            Kind::Forbidden
        );
    }

    #[test]
    fn keys_stand_on_lines_or_between_commas() {
        assert_eq!(read_keys("a, b\n# no\n\n  c  \n"), ["a", "b", "c"]);
    }
}
