"""Material that several rooms' tests share."""
