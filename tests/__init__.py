"""Tests; they mirror the packages of vctl."""
