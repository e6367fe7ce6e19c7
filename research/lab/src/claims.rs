//! The claims of the papers, read from `claims.toml`.
//!
//! ```text
//! text ──toml──► entries ──check──► Claims: ids unique, criteria well formed, each with a place
//! ```
//!
//! Unknown kinds, places and keys are refused, so that a misspelt criterion is not ignored. [`crate::judging`] judges.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// How a claim is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A figure with a criterion: `expect` within `tolerance`, inside `range`, or every entry of `values` within `tolerance`.
    Number,
    /// A comparison that must hold.
    Order,
    /// The behaviour of a curve over the stated sweep.
    Shape,
    /// A property that holds, or that is shown to be broken.
    Safety,
}

/// Where a claim is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// In virtual time, on the project's device models.
    Simulated,
    /// On the machine at hand.
    Live,
}

impl Place {
    /// The word used in `claims.toml` and in rows.
    pub fn word(self) -> &'static str {
        match self {
            Place::Simulated => "simulated",
            Place::Live => "live",
        }
    }
}

/// One statement of a paper, with its criterion.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Unique and stable; identifies rows.
    pub id: String,
    /// The paper, by author and year.
    pub paper: String,
    /// The place in the paper.
    pub section: String,
    pub kind: Kind,
    /// Where it is decided; each place gets a row.
    #[serde(rename = "where")]
    pub places: Vec<Place>,
    pub says: String,
    /// A contradiction in the text, or the remark that the claim is an interpretation.
    pub note: Option<String>,
    /// Whether it extends what the paper states.
    #[serde(default)]
    pub ours: bool,
    /// The expected figure, in `unit`.
    pub expect: Option<f64>,
    /// The unit of every figure of this claim.
    pub unit: Option<String>,
    /// The fraction by which a figure may differ.
    pub tolerance: Option<f64>,
    /// The lowest and the highest figure allowed.
    pub range: Option<[f64; 2]>,
    /// The expected figures, by name.
    pub values: Option<BTreeMap<String, f64>>,
}

impl Claim {
    /// The percentage in the statement as a fraction, if there is exactly one. Orders and shapes use it as their tolerance.
    pub fn stated_fraction(&self) -> Option<f64> {
        let mut stated = self.says.match_indices(" %").filter_map(|(end, _)| {
            let number = self.says[..end].rsplit(|c: char| !c.is_ascii_digit()).next()?;
            number.parse::<f64>().ok()
        });
        let percent = stated.next()?;
        stated.next().is_none().then_some(percent / 100.0)
    }

    fn has_criterion(&self) -> bool {
        self.expect.is_some() || self.range.is_some() || self.values.is_some() || self.tolerance.is_some()
    }
}

/// Why a list of claims is refused.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ClaimsError {
    /// Not TOML, or an entry with an unknown or missing key, kind or place.
    #[error("the claims do not parse: {0}")]
    Syntax(#[from] toml::de::Error),
    /// Two entries with one id.
    #[error("claim `{id}` is listed twice")]
    DuplicateId { id: String },
    /// An entry without a place, or with one place twice.
    #[error("claim `{id}` must name each place at most once, and at least one")]
    Places { id: String },
    /// A numeric criterion on a claim of another kind.
    #[error("claim `{id}` has a criterion for numbers, but its kind is {kind:?}")]
    CriterionWithoutNumber { id: String, kind: Kind },
    /// An empty range, or a tolerance that is not positive.
    #[error("claim `{id}` has a criterion that no figure can meet")]
    ImpossibleCriterion { id: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    claim: Vec<Claim>,
}

/// A checked list of claims, in the order of its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    list: Vec<Claim>,
}

impl Claims {
    /// The claims of this project: `research/lab/claims.toml`.
    ///
    /// # Errors
    /// As [`Claims::parse`].
    pub fn built_in() -> Result<Self, ClaimsError> {
        Self::parse(include_str!("../claims.toml"))
    }

    /// Reads and checks a list of claims.
    ///
    /// # Errors
    /// The first entry that breaks a rule of [`ClaimsError`].
    ///
    /// ```
    /// use memferry_lab::claims::{Claims, ClaimsError};
    /// let entry = "[[claim]]\nid = 'a'\npaper = 'p'\nsection = '1'\nkind = 'order'\nwhere = ['live']\nsays = 's'\n";
    /// assert_eq!(Claims::parse(entry)?.list().len(), 1);
    /// assert!(matches!(Claims::parse(&entry.repeat(2)), Err(ClaimsError::DuplicateId { .. })));
    /// # Ok::<(), ClaimsError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ClaimsError> {
        let Document { claim: list } = toml::from_str(text)?;
        let mut ids = BTreeSet::new();
        for claim in &list {
            if !ids.insert(&claim.id) {
                return Err(ClaimsError::DuplicateId { id: claim.id.clone() });
            }
            check(claim)?;
        }
        Ok(Self { list })
    }

    /// The claims, in the order of their text.
    pub fn list(&self) -> &[Claim] {
        &self.list
    }

    /// The claim with this id.
    pub fn find(&self, id: &str) -> Option<&Claim> {
        self.list.iter().find(|claim| claim.id == id)
    }

    /// The claims with these ids; all claims for an empty list.
    #[must_use]
    pub fn only(&self, ids: &[String]) -> Self {
        let mut claims = self.clone();
        claims.list.retain(|claim| ids.is_empty() || ids.contains(&claim.id));
        claims
    }
}

fn check(claim: &Claim) -> Result<(), ClaimsError> {
    let id = || claim.id.clone();
    let places: BTreeSet<Place> = claim.places.iter().copied().collect();
    if places.is_empty() || places.len() != claim.places.len() {
        return Err(ClaimsError::Places { id: id() });
    }
    if claim.kind != Kind::Number && claim.has_criterion() {
        return Err(ClaimsError::CriterionWithoutNumber { id: id(), kind: claim.kind });
    }
    let empty_range = claim.range.is_some_and(|[low, high]| low > high);
    if empty_range || claim.tolerance.is_some_and(|fraction| fraction <= 0.0) {
        return Err(ClaimsError::ImpossibleCriterion { id: id() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, rest: &str) -> String {
        format!("[[claim]]\nid = '{id}'\npaper = 'p'\nsection = '1'\nsays = 's'\n{rest}\n")
    }

    fn parse(rest: &str) -> Result<Claims, ClaimsError> {
        Claims::parse(&entry("a", rest))
    }

    #[test]
    fn accepts_the_projects_own_list() {
        let claims = Claims::built_in().expect("checked");
        assert!(claims.list().len() >= 50);
        let number = claims.list().iter().find(|claim| claim.id == "wicki-burst-peak").expect("listed");
        assert_eq!((number.kind, number.expect, number.tolerance), (Kind::Number, Some(915.0), Some(0.05)));
    }

    #[test]
    fn an_order_states_its_percentage_in_words() {
        let claims = Claims::built_in().expect("checked");
        let fraction = |id: &str| claims.find(id).expect("listed").stated_fraction();
        assert_eq!(fraction("wicki-transparent"), Some(0.03));
        assert_eq!(fraction("wicki-rotation"), Some(0.2));
        assert_eq!(fraction("wicki-concurrency"), None);
        assert_eq!(fraction("nava-file-server"), None, "two percentages give none");
    }

    #[test]
    fn refuses_a_duplicated_id() {
        let text = entry("a", "kind = 'order'\nwhere = ['live']").repeat(2);
        assert_eq!(Claims::parse(&text), Err(ClaimsError::DuplicateId { id: "a".to_owned() }));
    }

    #[test]
    fn refuses_unknown_words() {
        for rest in [
            "kind = 'guess'\nwhere = ['live']",
            "kind = 'order'\nwhere = ['elsewhere']",
            "kind = 'number'\nwhere = ['live']\ntolerence = 0.1",
            "where = ['live']",
        ] {
            assert!(matches!(parse(rest), Err(ClaimsError::Syntax(_))), "{rest}");
        }
    }

    #[test]
    fn refuses_missing_and_repeated_places() {
        for places in ["", "'live', 'live'"] {
            let refused = parse(&format!("kind = 'order'\nwhere = [{places}]"));
            assert_eq!(refused, Err(ClaimsError::Places { id: "a".to_owned() }));
        }
    }

    #[test]
    fn refuses_a_numeric_criterion_on_other_kinds() {
        let refused = parse("kind = 'safety'\nwhere = ['live']\nexpect = 3");
        assert_eq!(
            refused,
            Err(ClaimsError::CriterionWithoutNumber { id: "a".to_owned(), kind: Kind::Safety })
        );
    }

    #[test]
    fn refuses_an_impossible_criterion() {
        for criterion in ["range = [2, 1]", "expect = 3\ntolerance = 0"] {
            let refused = parse(&format!("kind = 'number'\nwhere = ['live']\n{criterion}"));
            assert_eq!(refused, Err(ClaimsError::ImpossibleCriterion { id: "a".to_owned() }), "{criterion}");
        }
    }
}
