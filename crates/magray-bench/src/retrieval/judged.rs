//! Documents, queries and judgements in a folder, and how good a ranking is by them.
//! Ranks nothing itself.

use std::{collections::HashMap, fs, path::Path};

use crate::failure::Failure;

/// Positions that count.
pub(super) const DEPTH: usize = 10;

/// `docs.tsv` and `queries.tsv` (id, tab, text on each line) and `qrels.tsv` (query, document and grade, apart by tabs).
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) documents: Vec<String>,
    pub(super) queries: Vec<String>,
    /// By query: the grades of documents, by their positions in `documents`.
    grades: Vec<HashMap<u32, f64>>,
}

impl Judged {
    /// Queries without a document that is any good are left out: nothing could be found for them.
    pub(super) fn read(folder: &Path) -> Result<Self, Failure> {
        let documents = table(&folder.join("docs.tsv"))?;
        let queries = table(&folder.join("queries.tsv"))?;
        let positions: HashMap<&str, u32> = documents.iter().zip(0..).map(|((id, _), at)| (id.as_str(), at)).collect();
        let mut by_query: HashMap<&str, HashMap<u32, f64>> = HashMap::new();
        let path = folder.join("qrels.tsv");
        let judgements = table(&path)?;
        for (line, (query, rest)) in judgements.iter().enumerate() {
            let grade = rest.split_once('\t').and_then(|(id, grade)| Some((id, grade.trim().parse().ok()?)));
            let Some((id, grade)) = grade.filter(|(_, grade): &(&str, f64)| grade.is_finite()) else {
                return Err(bad(&path, line, "a query, a document and a grade, apart by tabs"));
            };
            let document = positions.get(id).ok_or_else(|| bad(&path, line, "a document of docs.tsv"))?;
            if grade > 0.0 {
                by_query.entry(query).or_default().insert(*document, grade);
            }
        }
        let judged = queries.iter().filter_map(|(id, text)| Some((text.clone(), by_query.get(id.as_str())?.clone())));
        let (queries, grades): (Vec<_>, Vec<_>) = judged.unzip();
        if queries.is_empty() {
            return Err(Failure::Usage(format!("{}: no query has a judgement", path.display())));
        }
        Ok(Self { documents: documents.into_iter().map(|(_, text)| text).collect(), queries, grades })
    }

    /// Mean nDCG at [`DEPTH`] of a ranking for each query.
    pub(super) fn ndcg<'r>(&self, rankings: impl IntoIterator<Item = &'r [u32]>) -> f64 {
        let each = self.grades.iter().zip(rankings).map(|(grades, ranking)| {
            let found = ranking.iter().map(|document| grades.get(document).copied().unwrap_or(0.0));
            let mut ideal: Vec<f64> = grades.values().copied().collect();
            ideal.sort_by(|a, b| b.total_cmp(a));
            discounted(found) / discounted(ideal.into_iter())
        });
        each.sum::<f64>() / self.queries.len() as f64
    }
}

fn discounted(grades: impl Iterator<Item = f64>) -> f64 {
    grades.take(DEPTH).zip(2u32..).map(|(grade, position)| grade / f64::from(position).log2()).sum()
}

fn table(path: &Path) -> Result<Vec<(String, String)>, Failure> {
    let text = fs::read_to_string(path).map_err(|reason| Failure::File { path: path.to_owned(), reason })?;
    let row = |(line, row): (usize, &str)| {
        let (id, rest) = row.split_once('\t').ok_or_else(|| bad(path, line, "an id and a tab"))?;
        Ok((id.to_owned(), rest.to_owned()))
    };
    text.lines().enumerate().filter(|(_, row)| !row.is_empty()).map(row).collect()
}

fn bad(path: &Path, line: usize, wanted: &str) -> Failure {
    Failure::Usage(format!("{}, line {}: there must be {wanted}", path.display(), line + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(judgements: &str) -> Result<Judged, Failure> {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        write("docs.tsv", "a\tfirst\nb\tsecond\nc\tthird\n");
        write("queries.tsv", "1\tone\n2\ttwo\n3\tnot judged\n");
        write("qrels.tsv", judgements);
        Judged::read(folder.path())
    }

    #[test]
    fn the_gain_is_discounted_by_position_and_set_against_the_best() {
        let judged = folder("1\ta\t1\n1\tb\t3\n2\tc\t1\n2\ta\t0\n").expect("readable");
        assert_eq!((judged.documents.len(), judged.queries.as_slice()), (3, &["one".to_owned(), "two".to_owned()][..]));
        assert_eq!(judged.ndcg([&[1, 0][..], &[2]]), 1.0);
        let second = 1.0 / 3f64.log2();
        let expected = ((1.0 + 3.0 * second) / (3.0 + second) + second) / 2.0;
        assert!((judged.ndcg([&[0, 1][..], &[0, 2]]) - expected).abs() < 1e-12);
        assert_eq!(judged.ndcg([&[][..], &[0]]), 0.0);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = |judgements| folder(judgements).expect_err("refused").to_string();
        assert!(error("1\ta\n").contains("qrels.tsv, line 1: there must be a query, a document and a grade"));
        assert!(error("1\ta\t1\n1\tx\t1\n").contains("line 2: there must be a document of docs.tsv"));
        assert!(error("").contains("no query has a judgement"));
    }
}
