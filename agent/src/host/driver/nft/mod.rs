//! nftables rulesets as text, through `nft -f -` (nft(8)).
