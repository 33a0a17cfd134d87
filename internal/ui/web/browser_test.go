package main

import "github.com/chromedp/chromedp"

var _ = chromedp.Do
