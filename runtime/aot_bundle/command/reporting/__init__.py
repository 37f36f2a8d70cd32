"""Write the page of `aotbundle report`."""
