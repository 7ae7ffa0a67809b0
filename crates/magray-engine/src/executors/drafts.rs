//! Prompt lookup: proposes the tokens that followed where the last ones of a sequence stood in it before.
//! Chooses nothing: a proposal counts only where the model chooses the same.

/// What is known of a sequence whose next tokens are proposed.
pub(super) struct Drafts {
    ids: Vec<u32>,
    /// Proposed at once, at most.
    most: usize,
    /// Proposed at once for now: fewer while all are wrong.
    length: usize,
}

/// Tokens that have to be the same, the most first.
const SAME: [usize; 3] = [4, 3, 2];
/// How far back they are looked for.
const BACK_MAX: usize = 32_768;

impl Drafts {
    /// For a sequence of which up to this many tokens are proposed for a pass; `None`: none are.
    pub(super) fn new(most: u8) -> Option<Self> {
        (most > 0).then(|| Self { ids: Vec::new(), most: most.into(), length: most.into() })
    }

    /// Takes note of tokens from this place on. Those that are known count once.
    pub(super) fn note(&mut self, place: usize, ids: &[u32]) {
        let known = self.ids.len().saturating_sub(place).min(ids.len());
        self.ids.extend_from_slice(&ids[known..]);
    }

    /// Forgets tokens from this place on.
    pub(super) fn forget(&mut self, place: usize) {
        self.ids.truncate(place);
    }

    /// Adds up to this many tokens that may follow.
    pub(super) fn propose(&self, most: usize, out: &mut Vec<u32>) {
        let most = most.min(self.length);
        let known = &self.ids[self.ids.len().saturating_sub(BACK_MAX)..];
        let Some(followed) = SAME.iter().find_map(|same| after_the_same(known, *same)).filter(|_| most > 0) else {
            return;
        };
        // What repeats itself goes on to: behind the last known token come the first that were proposed.
        let followed = &known[followed..];
        out.extend(followed.iter().cycle().take(most));
    }

    /// Learns how many of the proposed tokens were right.
    pub(super) fn learn(&mut self, proposed: usize, right: usize) {
        if proposed > 0 && right == 0 {
            self.length = (self.length / 2).max(1);
        } else if right == proposed {
            self.length = (self.length * 2).min(self.most);
        }
    }
}

/// Behind the last place but the end where the last tokens, this many, stand.
fn after_the_same(ids: &[u32], same: usize) -> Option<usize> {
    let before = ids.len().checked_sub(same + 1)?;
    let last = &ids[before + 1..];
    let found = ids[..before + same].windows(same).rposition(|window| window == last)?;
    Some(found + same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(ids: &[u32], most: usize) -> Vec<u32> {
        let mut drafts = Drafts::new(8).unwrap();
        drafts.note(0, ids);
        let mut out = Vec::new();
        drafts.propose(most, &mut out);
        out
    }

    #[test]
    fn what_followed_the_same_tokens_is_proposed() {
        assert_eq!(proposed(&[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        assert_eq!(proposed(&[1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 2), [4, 9], "the last place counts");
        assert_eq!(proposed(&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1), [3], "more of the same count more");
        assert_eq!(proposed(&[5, 5, 5], 4), [5, 5, 5, 5]);
        assert_eq!(proposed(&[1, 2, 3, 1, 2], 5), [3, 1, 2, 3, 1], "what repeats itself goes on");
        assert_eq!(proposed(&[1, 2, 1, 2], 0), [0; 0]);
        for ids in [&[][..], &[1], &[1, 1], &[1, 2, 3, 4]] {
            assert_eq!(proposed(ids, 4), [0; 0], "{ids:?}");
        }
    }

    #[test]
    fn tokens_are_noted_once_and_forgotten() {
        let mut drafts = Drafts::new(4).unwrap();
        drafts.note(0, &[1, 2, 3]);
        drafts.note(1, &[2, 3, 4]);
        drafts.note(0, &[1]);
        assert_eq!(drafts.ids, [1, 2, 3, 4]);
        drafts.forget(2);
        drafts.note(2, &[9]);
        assert_eq!(drafts.ids, [1, 2, 9]);
        assert!(Drafts::new(0).is_none());
    }

    #[test]
    fn fewer_are_proposed_while_they_are_wrong() {
        let mut drafts = Drafts::new(8).unwrap();
        drafts.note(0, &[5; 9]);
        let count = |drafts: &Drafts| {
            let mut out = Vec::new();
            drafts.propose(100, &mut out);
            out.len()
        };
        (0..9).for_each(|_| drafts.learn(4, 0));
        assert_eq!(count(&drafts), 1);
        drafts.learn(1, 1);
        drafts.learn(2, 1);
        assert_eq!(count(&drafts), 2);
        (0..9).for_each(|_| drafts.learn(4, 4));
        assert_eq!(count(&drafts), 8);
    }
}
