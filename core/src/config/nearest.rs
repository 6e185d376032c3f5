//! "Did you mean ...?": the known word that a typo is closest to.

/// The word at the smallest edit distance from `wrong`, if it is near enough to
/// be what was meant.
pub(super) fn nearest<'a>(
    wrong: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let tolerance = 1 + wrong.chars().count() / 4;
    (words.into_iter())
        .map(|word| (distance(wrong, word), word))
        .filter(|&(d, _)| d <= tolerance)
        .min_by_key(|&(d, _)| d)
        .map(|(_, word)| word)
}

/// "; did you mean `x`?", or nothing.
pub(super) fn suggestion<'a>(wrong: &str, words: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(wrong, words) {
        Some(word) => format!("; did you mean `{word}`?"),
        None => String::new(),
    }
}

/// Insertions, deletions, substitutions and swaps of neighbours: the optimal
/// string alignment distance, three rows at a time.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // A file can hold a name of any length; what is this long is no typo.
    if a.len().max(b.len()) > 64 {
        return usize::MAX;
    }
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substitute = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substitute.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        (before, above) = (above, row);
    }
    above[b.len()]
}
