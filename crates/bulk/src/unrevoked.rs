//! Grants that could not be revoked yet. Each is tried again until nobody can use it any more.
//!
//! ```text
//! revoke ─┬─ revoked, or useless with its session ─► forgotten
//!         └─ pending or refused: may still be used ─► kept ─ take_back ─► revoke again
//! ```

use memferry::{CallError, GrantToken};

#[derive(Default)]
pub(crate) struct Unrevoked(Vec<GrantToken>);

impl Unrevoked {
    /// Revokes a grant by `revoke`. One that may still be used is kept for [`take_back`](Self::take_back).
    pub(crate) fn revoke(
        &mut self,
        token: GrantToken,
        revoke: impl FnOnce(GrantToken) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let revoked = revoke(token);
        if revoked.as_ref().is_err_and(may_be_used) {
            self.0.push(token);
        }
        revoked
    }

    /// Revokes these grants and those that were kept.
    ///
    /// # Errors
    /// That of the first one that may still be used. It is the first one of the next call, and the others follow it.
    pub(crate) fn take_back(
        &mut self,
        more: impl IntoIterator<Item = GrantToken>,
        mut revoke: impl FnMut(GrantToken) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        self.0.extend(more);
        while let Some(token) = self.0.pop() {
            if let Err(error) = self.revoke(token, &mut revoke)
                && may_be_used(&error)
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Leaves the first one of the next call to the service, which goes on with a revocation that it has begun.
    pub(crate) fn leave_first(&mut self) {
        self.0.pop();
    }
}

/// Whether a grant may still be used whose revocation failed so. A session that ends takes its grants with it.
fn may_be_used(error: &CallError) -> bool {
    let is_over = matches!(error, CallError::Ended(_) | CallError::ServiceLost | CallError::Forked(_));
    !is_over && !error.is_revoked_before()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memferry::{Refusal, RefusalKind};

    use super::*;

    fn token(number: u64) -> GrantToken {
        GrantToken::from_raw(1 << 32 | number)
    }

    fn pending() -> CallError {
        CallError::RevocationPending { after: Duration::from_secs(1) }
    }

    fn refused(kind: RefusalKind) -> CallError {
        CallError::Refused(Refusal { kind, message: String::new() })
    }

    #[test]
    fn a_grant_that_may_be_used_is_tried_again() {
        let mut unrevoked = Unrevoked::default();
        assert!(unrevoked.revoke(token(1), |_| Err(pending())).is_err());
        assert!(unrevoked.revoke(token(2), |_| Ok(())).is_ok());
        // Too many at a time, then not complete, then revoked. The other one waits behind it.
        let mut answers = vec![Ok(()), Ok(()), Err(pending()), Err(refused(RefusalKind::Quota))];
        let mut tried = Vec::new();
        let mut more = Some(token(3));
        while unrevoked
            .take_back(more.take(), |token| {
                tried.push(token);
                answers.pop().unwrap_or(Ok(()))
            })
            .is_err()
        {
            assert!(tried.len() < 4, "{tried:?}");
        }
        assert_eq!(tried, [token(3), token(3), token(3), token(1)]);
        let none = unrevoked.take_back([], |token| panic!("{token:?} again"));
        assert!(none.is_ok());
    }

    #[test]
    fn a_grant_that_nobody_can_use_is_not_tried_again() {
        let mut unrevoked = Unrevoked::default();
        for error in [|| refused(RefusalKind::Capability), || CallError::ServiceLost] {
            // The caller of the one learns of it, and the end of a channel is none of them.
            assert!(unrevoked.revoke(token(1), |_| Err(error())).is_err());
            assert!(
                unrevoked
                    .take_back([token(2)], |tried| {
                        assert_eq!(tried, token(2));
                        Err(error())
                    })
                    .is_ok()
            );
            assert!(unrevoked.take_back([], |token| panic!("{token:?} again")).is_ok());
        }
    }

    #[test]
    fn one_that_takes_too_long_does_not_keep_the_others() {
        let mut unrevoked = Unrevoked::default();
        let mut revoked = Vec::new();
        let mut revoke = |tried: GrantToken| {
            if tried == token(2) {
                return Err(pending());
            }
            revoked.push(tried);
            Ok(())
        };
        let mut more = vec![token(1), token(2), token(3)];
        while unrevoked.take_back(more.drain(..), &mut revoke).is_err() {
            unrevoked.leave_first();
        }
        assert_eq!(revoked, [token(3), token(1)]);
    }
}
