//! The arithmetic of search, for each CPU path. Decides nothing: it is told the path.

mod exact;

pub(super) use exact::exact_score;
