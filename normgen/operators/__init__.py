"""What operators of all frameworks share: the table of functions, the forms of a call, their signatures, their handles.

No framework is imported here.
"""
