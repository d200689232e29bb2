//! Interfaces, addresses, routes, rules and neighbours of a network namespace, over rtnetlink (rtnetlink(7)).
