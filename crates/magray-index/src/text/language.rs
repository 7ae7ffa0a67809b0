//! The languages that texts can be analysed in.
//! Says only what they are called and which stemmer they have.

use std::str::FromStr;

use rust_stemmers::Algorithm;

/// Says each language once: its name, and its stemmer.
macro_rules! languages {
    ($($language:ident $name:literal)*) => {
        /// A language with a Snowball stemmer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the names say all")]
        pub enum Language { $($language),* }

        impl Language {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$language),*];

            /// Its English name, in lower case.
            pub fn name(self) -> &'static str {
                match self { $(Self::$language => $name),* }
            }

            pub(super) fn algorithm(self) -> Algorithm {
                match self { $(Self::$language => Algorithm::$language),* }
            }
        }
    };
}

languages! {
    Arabic "arabic" Danish "danish" Dutch "dutch" English "english" Finnish "finnish" French "french" German "german"
    Greek "greek" Hungarian "hungarian" Italian "italian" Norwegian "norwegian" Portuguese "portuguese"
    Romanian "romanian" Russian "russian" Spanish "spanish" Swedish "swedish" Tamil "tamil" Turkish "turkish"
}

/// A name that no language has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no stemmer for the language {0:?}; known are {known}", known = known())]
pub struct UnknownLanguage(String);

fn known() -> String {
    Language::ALL.iter().map(|language| language.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Language {
    type Err = UnknownLanguage;

    fn from_str(name: &str) -> Result<Self, UnknownLanguage> {
        let found = Self::ALL.iter().find(|language| language.name().eq_ignore_ascii_case(name));
        found.copied().ok_or_else(|| UnknownLanguage(name.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_is_found_by_its_name() {
        for language in Language::ALL {
            assert_eq!(language.name().parse(), Ok(*language));
        }
        let error = "klingon".parse::<Language>().expect_err("there is none").to_string();
        assert!(error.contains("klingon") && error.contains("danish, dutch, english"), "{error}");
    }
}
