"""Facts about programs and installations as frozen data, and the text that is drawn from them."""
